"""Replays the fast tier's writes into the archive, and moves namespaces between their states.

``plan`` decides and does no I/O; the other modules read, write and wait.
"""
