"""Whether the files that a connection string names are there, and good."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from thermocline_common.certificates import Unusable, check_key, read_certificates
from thermocline_common.uri.check import Connection
from thermocline_common.uri.problems import UriProblem

_FILES = ("tlsCAFile", "tlsCRLFile", "tlsCertificateKeyFile")


def file_problems(connection: Connection, now: dt.datetime) -> Iterator[UriProblem]:
    """Of every file that the options name, on this machine."""
    for name in _FILES:
        if name not in connection.options.values:
            continue
        option = connection.options.written[name]
        text = _problem(connection, name, now)
        if text is not None:
            yield UriProblem(
                option.value_start, option.end, f"{name} {text}", "mend the file, or name another"
            )


def _problem(connection: Connection, name: str, now: dt.datetime) -> str | None:
    path = Path(connection.options.values[name])
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return f"names {path}, which isn't there"
    except OSError as error:
        return f"names {path}, which can't be read: {error.strerror}"
    if not content.strip():
        return f"names {path}, which is empty"
    if name == "tlsCRLFile":
        return None
    try:
        found = read_certificates(content)
        if name == "tlsCertificateKeyFile" and "tlsCertificateKeyFilePassword" not in (
            connection.options.values
        ):
            check_key(content, found)
    except Unusable as error:
        return f"names {path}, which {error}"
    reasons = [one.untimely(now) for one in (found if name == "tlsCAFile" else found[:1])]
    return f"names {path}, which {reasons[0]}" if all(reasons) else None
