"""Reads of tiered namespaces: the shell that takes the routes that ``routing`` decides."""

from thermocline_proxy.reads.handler import handle

__all__ = ["handle"]
