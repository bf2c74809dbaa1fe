"""Reads of tiered namespaces: the shell that takes the routes that ``routing`` decides."""

from thermocline_proxy.commands.change_streams import RESUMABLE
from thermocline_proxy.reads.archive_streams import on_archive
from thermocline_proxy.reads.handler import handle
from thermocline_proxy.reads.lookups import Lookups
from thermocline_proxy.reads.watching import before_more, follow

__all__ = ["RESUMABLE", "Lookups", "before_more", "follow", "handle", "on_archive"]
