"""PyMongo's connections keep for life whether sessions are supported; mended.

A connection asks when it is made. One that is made while a member recovers (it was just started, or loses an
election's data) hears "not readable", and from then on every command with a session fails on it with
``ConfigurationError``, long after the member is the primary again. Members of a replica set have supported
sessions since MongoDB 3.6, and Thermocline takes 6.0 and later alone.
"""

from typing import Any

from pymongo.asynchronous import pool


class _Supported:
    """Says yes, whatever was found at the connection's begin."""

    def __get__(self, connection: Any, owner: Any = None) -> bool:
        return True

    def __set__(self, connection: Any, value: bool) -> None:
        return None


def mend() -> None:
    """Put it in PyMongo's place. Does nothing the second time."""
    vars_of: Any = pool.AsyncConnection
    vars_of.supports_sessions = _Supported()
