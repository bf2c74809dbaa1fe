"""Which answers are checked. Pure."""

from typing import Final

from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.readconcern import SNAPSHOT, read_concern
from thermocline_proxy.routing.questions import QUERIES, ask

MAX_SAMPLE_BYTES: Final = 4 * 1024 * 1024
"""Of command and answer together; larger ones aren't kept."""

# What answers differently each time, or by the server's clock, with the same documents.
_UNSTEADY: Final = (b"$sample\0", b"$sampleRate\0", b"$rand\0", b"$$NOW", b"$$CLUSTER_TIME")
_TRANSACTION: Final = frozenset(("autocommit", "startTransaction"))


def chosen(share: float, draw: float) -> bool:
    """Whether an answer is checked. ``draw``: a random number, 0 <= draw < 1."""
    return draw < share


def suits(command: Command) -> bool:
    """Whether two answers to a command could be compared at all."""
    if command.name not in QUERIES or _TRANSACTION & command.fields.keys():
        return False
    if any(mark in command.body for mark in _UNSTEADY):
        return False
    concern = read_concern(command)
    if not concern.valid or concern.at is not None or concern.level == SNAPSHOT:
        return False  # an answer of the past
    question = ask(command)
    if question.explained or question.filter is None:
        return False
    return question.pipeline is None or not question.pipeline.change_stream
