"""Decisions: (command, policy, coverage snapshot) -> route and reason. Pure: no I/O, no clock."""
