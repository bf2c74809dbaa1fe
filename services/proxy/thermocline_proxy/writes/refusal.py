"""Writes that the two tiers can't decide together, refused with what to do instead."""

from thermocline_common.errors import Code, CommandError


class Refused(CommandError):
    """This statement isn't supported on a tiered collection; nothing of it was executed."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.CommandNotSupported, message)
