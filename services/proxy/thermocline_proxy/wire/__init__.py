"""MongoDB's wire protocol as bytes and values. Pure: no I/O, no clock."""
