"""Schedules: the real code of all components, one step at a time, in an order that a test chooses.

Every actor (a client's command, the evictor, the feeder, ...) is a task that stops before each
command that it sends to a tier. The scheduler lets exactly one of them go on, waits until it stops
again, and checks the protocol's invariants. Time is the scheduler's own.
"""
