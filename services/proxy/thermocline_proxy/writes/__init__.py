"""Writes on tiered namespaces: plans are pure, running them is the shell.

``handle`` serves every write in every state of its namespace: ``Active``, pausing, and ``Passthrough``
while ``lookBack`` is set.
"""

from thermocline_proxy.writes.handler import handle

__all__ = ["handle"]
