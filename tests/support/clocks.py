"""Python processes whose wall clock is wrong. Monotonic clocks, and other programs, go right."""

from pathlib import Path
from typing import Final

SHIM: Final = '''"""Loaded by the interpreter at its start: the wall clock is off by a fixed time."""
import datetime
import time

SECONDS = {seconds!r}
_real, _time = datetime.datetime, time.time


class _Kind(type(_real)):
    """What was made by C code counts as one of ours."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, _real)

    def __subclasscheck__(cls, other):
        return issubclass(other, _real)


class Shifted(_real, metaclass=_Kind):
    """A datetime whose now is wrong."""

    @classmethod
    def now(cls, tz=None):
        return _real.now(tz) + datetime.timedelta(seconds=SECONDS)

    @classmethod
    def utcnow(cls):
        return _real.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=SECONDS)

    @classmethod
    def today(cls):
        return cls.now()


Shifted.__name__ = Shifted.__qualname__ = "datetime"
datetime.datetime = Shifted
time.time = lambda: _time() + SECONDS
'''


def shifted(directory: Path, seconds: float) -> dict[str, str]:
    """The environment of a Python process whose clock is ``seconds`` ahead; ``directory`` becomes its own."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(SHIM.format(seconds=seconds))
    return {"PYTHONPATH": str(directory)}
