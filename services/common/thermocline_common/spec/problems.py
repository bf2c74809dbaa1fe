"""What is wrong with a resource, told so that a person can mend it."""

from collections.abc import Iterable
from dataclasses import dataclass

from thermocline_common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``path``: such as ``spec.collections[2].maxAge``. ``value``: what stands there, as text, None
    where it could be (or hide) a secret. ``reason`` continues "<path> ...", ``remedy`` is what to do.
    """

    path: str
    reason: str
    remedy: str
    value: str | None = None

    def __str__(self) -> str:
        shown = "" if self.value is None else f" ({self.value})"
        return f"{self.path}{shown}: {self.reason}; {self.remedy}"


class ManifestError(ConfigError):
    """A manifest has problems, all of which are in ``problems``."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def join_path(loc: Iterable[str | int]) -> str:
    """``("spec", "collections", 2, "maxAge")`` as ``spec.collections[2].maxAge``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
