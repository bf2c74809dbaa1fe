"""JSON logs on standard error, one object a line, without secrets."""

import datetime as dt
import json
import logging
import sys
import threading
import types
from typing import Any, Final

from thermocline_common.uri import render

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
_secrets: set[str] = set()


def add_secret(value: str) -> None:
    """Never write ``value`` into a log from now on. Very short ones can't be told from other text."""
    if len(value) >= 4:
        _secrets.add(value)


def redact(text: str) -> str:
    """``text`` without user and password of connection strings, and without known secrets."""
    text = render.redact(text)
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, "***")
    return text


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return redact(str(value))


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (UTC), level, logger, message, the record's extras, error."""

    def format(self, record: logging.LogRecord) -> str:
        when = dt.datetime.fromtimestamp(record.created, dt.UTC)
        entry: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        entry |= {k: _plain(v) for k, v in record.__dict__.items() if k not in _STANDARD}
        if record.exc_info:
            entry["error"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def _uncaught(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(__name__).critical("the process fails", exc_info=(kind, error, trace))


def _uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not issubclass(found.exc_type, SystemExit):
        exc_info = (found.exc_type, found.exc_value, found.exc_traceback)
        logging.getLogger(__name__).critical("a thread fails", exc_info=exc_info)


def configure(level: str = "info") -> None:
    """Send everything at or above ``level`` to standard error as JSON; libraries from warnings up.

    What nobody catches, too: Python's own traceback would tell secrets.
    """
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("common", "proxy", "feeder", "evictor", "warmer", "operator"):
        logging.getLogger(f"thermocline_{name}").setLevel(level.upper())
    logging.captureWarnings(capture=True)
