"""What is wrong with a connection string, and where."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UriProblem:
    """``start`` and ``end`` are offsets into the text (characters, end excluded).

    ``reason`` and ``remedy`` never quote user, password or any value that may be secret.
    """

    start: int
    end: int
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"at character {self.start + 1}: {self.reason}; {self.remedy}"


class UriError(ValueError):
    """A connection string that can't be used; every problem found is in ``problems``."""

    def __init__(self, problems: Iterable[UriProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class SlashError(UriError):
    """Nothing but the ``/`` is missing so far: what else is wrong shows once it is put in."""
