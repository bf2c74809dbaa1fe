"""The thermocline command line: validate, explain."""
