"""Removes documents from the fast tier that are older than their policy asks for.

Nothing leaves unconfirmed: the archive holds the same bytes, and the feeder has passed the last
write. ``plan`` decides and does no I/O; the other modules read, write and wait.
"""
