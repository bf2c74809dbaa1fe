"""Which calls are repeated by themselves, and how errors read."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from thermocline_operator.api import ATTEMPTS, Api, ApiError


class Scripted(Api):
    """Fails with these statuses, one call after the other, then answers."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(cast("Any", None))
        self.left = list(statuses)
        self.calls = 0

    async def _once(self, *words: Any) -> dict[str, Any]:
        self.calls += 1
        if self.left:
            raise ApiError(self.left.pop(0), "Fault", "text", 0.0)
        return {"ok": True}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        assert seconds < 3

    monkeypatch.setattr(asyncio, "sleep", sleep)


@pytest.mark.parametrize(
    ("method", "statuses", "calls", "fails"),
    [
        ("GET", (500, 503, 429), 4, False),
        ("GET", (500,) * ATTEMPTS, ATTEMPTS, True),
        ("GET", (404,), 1, True),
        # It has taken its time already.
        ("GET", (0,), 1, True),
        ("PATCH", (429, 429), 3, False),
        # Whether it was carried out isn't known: the next turn looks.
        ("PATCH", (500,), 1, True),
        ("PUT", (409,), 1, True),
    ],
)
async def test_what_is_repeated(
    method: str, statuses: tuple[int, ...], calls: int, fails: bool
) -> None:
    api = Scripted(*statuses)
    answer: Mapping[str, Any] = {}
    try:
        answer = await api._request(method, "/x")
    except ApiError:
        assert fails
    assert bool(answer) is not fails
    assert api.calls == calls
