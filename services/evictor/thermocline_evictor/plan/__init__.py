"""The evictor's decisions: values in, values out. No I/O, no clock."""
