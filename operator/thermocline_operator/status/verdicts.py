"""What is decided of one condition."""

from dataclasses import dataclass
from typing import Final, Literal

from thermocline_operator.status.reasons import Reason

LAG_LIMIT_SECONDS: Final = 30.0
MAX_MESSAGE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status`` None: not known."""

    status: bool | None
    reason: Reason
    message: str

    @property
    def text(self) -> Literal["True", "False", "Unknown"]:
        """As it stands in the API."""
        return "Unknown" if self.status is None else "True" if self.status else "False"
