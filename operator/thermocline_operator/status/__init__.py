"""What a resource's ``status`` says, decided from what was observed. Rule: values in, values out; no clock."""
