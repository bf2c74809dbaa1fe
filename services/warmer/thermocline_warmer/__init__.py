"""Copies what policies ask for from the archive into the fast tier, then lowers the floor.

It also keeps the fast tier's users, indexes and collection options equal to the archive's.
``plan`` decides and does no I/O; the other modules read, write and wait.
"""
