import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from thermocline_common import logs


def line(
    message: str, *values: object, extra: dict[str, Any] | None = None, error: bool = False
) -> Any:
    record = logging.LogRecord(
        "thermocline_proxy", logging.WARNING, __file__, 1, message, values,
        sys.exc_info() if error else None,
    )  # fmt: skip
    record.__dict__.update(extra or {})
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_is_one_object_with_extras() -> None:
    found = line(
        "took %d ms", 5, extra={"namespace": "shop.orders", "n": 3, "ids": [1, {"a": None}]}
    )
    assert found["time"].endswith("Z")
    del found["time"]
    assert found == {
        "level": "warning",
        "logger": "thermocline_proxy",
        "message": "took 5 ms",
        "namespace": "shop.orders",
        "n": 3,
        "ids": [1, {"a": None}],
    }


def test_no_secret_in_message_extras_or_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set())
    logs.add_secret("geheim-es")
    try:
        raise ValueError("mongodb://u:p@ss@h/ and geheim-es")
    except ValueError:
        found = line(
            "mongodb+srv://u:pw@h/?a=b %s", "geheim-es", error=True,
            extra={"uri": "mongodb://u:pw@h", "deep": {"x": ["geheim-es"]}},
        )  # fmt: skip
    text = json.dumps(found)
    assert "geheim-es" not in text
    assert "u:pw" not in text
    assert "p@ss" not in text
    assert "mongodb+srv://***@h/?a=b ***" in found["message"]
    assert "ValueError" in found["error"]


def test_short_secrets_would_hide_everything() -> None:
    logs.add_secret("a")
    assert logs.redact("a cat") == "a cat"


def test_objects_without_json_are_written_as_text() -> None:
    assert line("x", extra={"path": object})["path"].startswith("<class")


PLANTED = """
import asyncio, sys, threading
from thermocline_common import logs
from thermocline_common.health import Problems
logs.configure()
logs.add_secret("geheim-es")

def fail():
    raise ValueError("no log-in with geheim-es at mongodb://u:p@ss@h/?x=1")

async def forgotten():
    asyncio.get_running_loop().create_task(asyncio.to_thread(fail))
    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0.2)
    import gc; gc.collect()

where = sys.argv[1]
if where == "main":
    fail()
elif where == "thread":
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
elif where == "task":
    asyncio.run(forgotten())
elif where == "problem":
    try:
        fail()
    except ValueError as error:
        problems = Problems()
        problems.set("x", str(error))
        print(problems.current, file=sys.stderr)
"""


@pytest.mark.parametrize("where", ["main", "thread", "task", "problem"])
def test_no_secret_in_what_nobody_catches(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, where], capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    assert "no log-in with *** at mongodb://***@h/?x=1" in told
    assert "geheim-es" not in told.replace('logs.add_secret("geheim-es")', "")
    assert "p@ss@h" not in told
    if where != "problem":
        lines = [json.loads(text) for text in done.stderr.splitlines()]
        assert any("Traceback" in found.get("error", "") for found in lines)
    assert (done.returncode != 0) is (where == "main")
