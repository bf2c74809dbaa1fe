"""Clients that people use, as scripts of their own (``tests/compat/clients``) with the interpreters they need."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import json_util

from support.binaries import cache_directory
from support.compat.suites import KIT, prepare

SCRIPTS: Final = KIT / "clients"
PACKAGES: Final[Mapping[str, str]] = {"mongoose": "9.12.1", "mongosh": "2.12.0"}
"""From the npm registry; the Node driver and everything of Python is the kit's."""
_SECONDS: Final = 120.0


class MissingError(RuntimeError):
    """This machine lacks what the client needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Client:
    """``command`` runs the script; ``environment`` is added to this process's."""

    command: Sequence[str]
    environment: Mapping[str, str]


def python_client(script: str) -> Client:
    """On the drivers of the kit's environment, and on MongoEngine as its source distribution has it."""
    work = prepare()
    engine = next((work / "trees").glob("*/mongoengine"), None)
    if engine is None:
        raise MissingError("no source of mongoengine")
    command = [str(work / "venv" / "bin" / "python"), str(SCRIPTS / script)]
    return Client(command, {"PYTHONPATH": str(engine), "PYTHONDONTWRITEBYTECODE": "1"})


def node_client(script: str, package: str | None = None) -> Client:
    """On the kit's Node driver, or a package of :data:`PACKAGES`. Raises :class:`MissingError`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not (node and npm):
        raise MissingError("no node and npm")
    if package is None:
        modules = prepare() / "node" / "node_modules"
        if not (modules / "mongodb").is_dir():
            raise MissingError("no Node driver: the kit couldn't fetch it")
    else:
        modules = _installed(npm, package, PACKAGES[package])
    environment = {"NODE_PATH": str(modules)}
    if package == "mongosh":
        shell = modules / ".bin" / "mongosh"
        home = str(modules.parent)  # it writes its configuration there
        return Client(
            [str(shell), "--quiet", "--norc", "{uri}", "--file", str(SCRIPTS / script)],
            {**environment, "HOME": home},
        )
    return Client([node, str(SCRIPTS / script)], environment)


def _installed(npm: str, package: str, version: str) -> Path:
    """The ``node_modules`` with a package, installed the first time. Raises :class:`MissingError`."""
    folder = cache_directory() / "clients" / f"{package}-{version}"
    modules = folder / "node_modules"
    with _alone(folder.parent / f"{folder.name}.lock"):
        if (folder / ".complete").exists():
            return modules
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true}')
        done = subprocess.run(
            [npm, "install", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund",
             "--no-package-lock", f"{package}@{version}"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise MissingError(f"npm couldn't install {package} {version}: {done.stdout[-500:]}")
        (folder / ".complete").touch()
    return modules


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def run(client: Client, uri: str, collection: str) -> dict[str, Any]:
    """The script's answers by step, from one server. Raises ``RuntimeError`` with what it printed."""
    environment = {"CLIENT_URI": uri, "CLIENT_COLLECTION": collection}
    done = subprocess.run(
        [argument.replace("{uri}", uri) for argument in client.command],
        env={**os.environ, **client.environment, **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr[-3000:]}{done.stdout[-3000:]}")
    answers: dict[str, Any] = {}
    for number, (step, answer) in enumerate(json_util.loads(json.dumps(json.loads(lines[-1])))):
        answers[f"{number} {step}"] = answer
    return answers
