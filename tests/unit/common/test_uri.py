"""Connection strings: the cases of ``tests/cases/uris.json``, and what PyMongo makes of the good ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pymongo.uri_parser import parse_uri

from thermocline_common.uri.check import check, find_problems
from thermocline_common.uri.options import RULES, Place
from thermocline_common.uri.render import driver_options, redact, seeds

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "cases" / "uris.json").read_text("utf-8")
)
GOOD = [case for case in CASES if "at" not in case]
BAD = [case for case in CASES if "at" in case]


def place(case: dict[str, Any]) -> Place:
    return Place(case.get("place", "client"))


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["uri"])
def test_good_ones(case: dict[str, Any]) -> None:
    found = check(case["uri"], place(case))
    hosts = [host.name if found.uri.srv else str(host) for host in found.uri.hosts]
    assert hosts == case["hosts"]
    assert dict(found.options.values) == case.get("options", {})
    assert (found.uri.user, found.uri.password) == (case.get("user"), case.get("password"))
    assert found.uri.database == case.get("database")
    assert found.uri.srv is case.get("srv", False)


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["uri"])
def test_bad_ones(case: dict[str, Any]) -> None:
    problems = find_problems(case["uri"], place(case))
    assert [p.start for p in problems] == [case["at"]]
    assert case["reason"] in problems[0].reason
    assert case.get("remedy", "") in problems[0].remedy
    assert problems[0].remedy
    assert 0 <= problems[0].start < problems[0].end


@pytest.mark.parametrize(
    "case", [c for c in GOOD if not c.get("srv")], ids=lambda case: case["uri"]
)
def test_agrees_with_pymongo(case: dict[str, Any]) -> None:
    ours = check(case["uri"], place(case))
    theirs = parse_uri(case["uri"], warn=False)
    assert [(h.name, None if h.is_socket else h.port) for h in ours.uri.hosts] == theirs["nodelist"]
    assert (ours.uri.user, ours.uri.password) == (theirs["username"], theirs["password"] or None)
    assert ours.uri.database == theirs["database"]
    options = {k.lower(): v for k, v in theirs["options"].items()}
    for name, value in ours.options.values.items():
        # PyMongo reads some values into its own units.
        if name in ("ssl", "maxStalenessSeconds") and name.lower() not in options:
            continue
        expected = options[name.lower()]
        if name == "readPreference":
            assert expected.lower() == value.lower()
        elif name not in ("compressors", "wtimeoutMS", "tls", "ssl"):
            assert expected == value


def test_tells_every_problem_in_order() -> None:
    text = "mongodb://u:p@h/shop?bogus=1&tls=yes&w=1"
    problems = find_problems(text, Place.MANIFEST)
    assert [p.start for p in problems] == [10, 15, 16, 21, 33, 39]
    assert not any("p@h" in str(p) for p in problems)


def test_options_are_known_once_and_by_canonical_name() -> None:
    assert all(key == rule.name.lower() for key, rule in RULES.items())
    assert sum(rule.repeatable for rule in RULES.values()) == 1


@given(st.text(alphabet="mongodb+srv:/?@,&=%.[]uh1 ;ö\n", max_size=40))
def test_any_text_is_either_good_or_explained(tail: str) -> None:
    for text in (tail, f"mongodb://{tail}", f"mongodb://h/?{tail}", f"mongodb+srv://{tail}"):
        for where in Place:
            for problem in find_problems(text, where):
                assert problem.reason
                assert problem.remedy
                assert 0 <= problem.start < problem.end <= max(len(text) + 1, 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mongodb://u:p@h/", "mongodb://***@h/"),
        ("mongodb://u:p@ss@h/", "mongodb://***@h/"),
        ("mongodb://u:p/s@h/?a=b", "mongodb://***@h/?a=b"),
        ("MongoDB+SRV://u:p@h", "MongoDB+SRV://***@h"),
        ("at mongodb://h/ and mongodb://u:p@i/", "at mongodb://h/ and mongodb://***@i/"),
        ("mongodb://h/?tlsCertificateKeyFilePassword=geheim&tls=true",
         "mongodb://h/?tlsCertificateKeyFilePassword=***&tls=true"),
        ("mongodb://h/?authmechanismproperties=AWS_SESSION_TOKEN:x", "mongodb://h/?authmechanismproperties=***"),
        ("nothing to hide", "nothing to hide"),
    ],
)  # fmt: skip
def test_redacts(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mongodb://u:p@H1:1,[::1]/?replicaSet=r%20s&tls=true", "mongodb://h1:1,[::1]:27017/?replicaSet=r%20s"),
        ("mongodb+srv://a.b.c/?tls=true", "mongodb+srv://a.b.c/"),
    ],
)  # fmt: skip
def test_renders_seeds_for_a_driver(text: str, shown: str) -> None:
    connection = check(text, Place.CLIENT)
    assert seeds(connection) == shown
    assert driver_options(connection, ["tls", "w"]) == {"tls": True}
    assert connection.tls
