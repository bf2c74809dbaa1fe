"""A connection string that people wrote: what it comes to, or what is wrong with it. Pure."""

from dataclasses import dataclass

from thermocline_common.uri.check import check
from thermocline_common.uri.effective import Effective, effective, mask
from thermocline_common.uri.options import Place
from thermocline_common.uri.parse import parse
from thermocline_common.uri.problems import UriError, UriProblem

WIDTH = 100
"""A longer text is cut around the mistake: a line that wraps would part the caret from it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """``uri``: the text, its secrets as ``*`` (so that offsets hold). ``problems``: none, and the rest
    says what it comes to; or some, and the rest is empty."""

    uri: str
    problems: tuple[UriProblem, ...] = ()
    hosts: tuple[str, ...] = ()
    user: str | None = None
    database: str | None = None
    options: tuple[Effective, ...] = ()


def check_text(text: str, place: Place) -> Checked:
    """What ``text`` comes to at ``place``."""
    try:
        masked = mask(text, parse(text))
    except UriError:
        masked = mask(text, None)
    # A tab would move the caret.
    masked = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in masked)
    try:
        connection = check(text, place)
    except UriError as error:
        return Checked(masked, error.problems)
    uri = connection.uri
    return Checked(
        masked,
        hosts=tuple(str(host) for host in uri.hosts),
        user=uri.user,
        database=uri.database,
        options=tuple(effective(connection)),
    )


def clip(text: str, position: int) -> tuple[str, int]:
    """A part of ``text`` that fits a line and holds ``position``, and where that stands in it."""
    if len(text) < WIDTH:
        return text, position
    begin = max(0, min(position - WIDTH // 2, len(text) - WIDTH))
    before = "..." if begin else ""
    after = "..." if begin + WIDTH < len(text) else ""
    return f"{before}{text[begin : begin + WIDTH]}{after}", position - begin + len(before)
