"""The feeder's decisions: pure functions and values, no I/O and no clock."""
