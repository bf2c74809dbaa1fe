"""The images' Dockerfiles, as far as they can be judged without building them."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([a-z0-9-]+)==([^\s;]+)", re.M)


def pins(path: Path) -> dict[str, str]:
    return dict(PIN.findall(path.read_text()))


@pytest.mark.parametrize("name", ["service/requirements", "operator/requirements", "build"])
def test_an_image_s_lock_is_a_part_of_the_whole(name: str) -> None:
    lock = pins(ROOT / "images" / f"{name}.lock")
    assert len(lock) > 3
    assert lock.items() <= pins(ROOT / "requirements.lock").items(), "run `make lock`"


def needed(*extras: str) -> set[str]:
    """The distributions that these extras of ours need on this machine."""
    waiting = [("thermocline-mongodb", extra) for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                inner = canonicalize_name(requirement.name)
                new = {(inner, wanted) for wanted in ("", *requirement.extras)} - seen
                seen |= new
                waiting += new
    return {name for name, _ in seen} - {"thermocline-mongodb"}


@pytest.mark.parametrize(
    ("name", "extras"),
    [("service", ("proxy", "feeder", "evictor", "warmer")), ("operator", ("operator", "feeder"))],
)
def test_an_image_s_lock_is_whole(name: str, extras: tuple[str, ...]) -> None:
    assert needed(*extras) <= pins(ROOT / "images" / name / "requirements.lock").keys(), (
        "run `make lock`"
    )


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("service", {"pymongo", "uvloop", "cramjam", "google-crc32c"}, {"kopf", "kubernetes"}),
        ("operator", {"kopf", "kubernetes", "pymongo"}, {"uvloop", "typer"}),
    ],
)
def test_an_image_has_what_it_needs(name: str, has: set[str], lacks: set[str]) -> None:
    lock = pins(ROOT / "images" / name / "requirements.lock").keys()
    assert has <= lock
    assert not lacks & lock
    assert not {"pytest", "mypy", "ruff"} & lock


@pytest.mark.parametrize("name", ["service", "operator"])
def test_dockerfile(name: str) -> None:
    text = (ROOT / "images" / name / "Dockerfile").read_text()
    assert "ARG BASE=python:3.12-slim\n" in text
    assert text.count("FROM $BASE") == 2
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", text, re.M), (
        "a number, which Kubernetes can judge"
    )
    assert text.index("requirements.lock") < text.index("COPY . source"), "dependencies first"
    installs = re.findall(r"pip [^&\n]*install[^&\n]*", text)
    assert all("--require-hashes" in line or "--no-deps wheels/" in line for line in installs)


def test_the_context_holds_no_more_than_is_needed() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in lines
    assert not [line for line in lines if line.startswith("!.") or ("test" in line and "!" in line)]
