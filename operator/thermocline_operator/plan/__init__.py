"""What should be there, and what to do about it. Rule: values in, values out; no I/O, no clock."""
