"""Connection strings: the cases of ``tests/cases/uris.json``, and what PyMongo makes of the good ones."""

import json
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bson.codec_options import DatetimeConversion
from hypothesis import HealthCheck, given, settings, strategies as st
from pymongo import MongoClient
from pymongo.common import _UUID_REPRESENTATIONS, URI_OPTIONS_VALIDATOR_MAP
from pymongo.uri_parser import parse_uri

from thermocline_common.uri.check import Connection, check, find_problems
from thermocline_common.uri.effective import effective, mask
from thermocline_common.uri.options import MECHANISMS, MODES, RULES, Place, Rule
from thermocline_common.uri.parse import parse
from thermocline_common.uri.problems import UriError
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
    assert [p.start for p in problems] == [case["at"], *case.get("also", [])]
    assert case["reason"] in problems[0].reason
    assert case.get("remedy", "") in problems[0].remedy
    assert problems[0].remedy
    assert 0 <= problems[0].start < problems[0].end


IN_SECONDS = {
    "connectTimeoutMS", "heartbeatFrequencyMS", "maxIdleTimeMS", "serverSelectionTimeoutMS", "socketTimeoutMS",
    "timeoutMS", "waitQueueTimeoutMS",
}  # fmt: skip
UNBOUNDED_AT_ZERO = {"connectTimeoutMS", "socketTimeoutMS"}


def as_pymongo(connection: Connection) -> dict[str, Any]:
    """Our typed options under PyMongo's names, in its units, with what it derives from them."""
    found: dict[str, Any] = {}
    for name, value in connection.options.values.items():
        key = "tls" if name == "ssl" else name.lower()
        if name in IN_SECONDS:
            found[key] = None if value == 0 and name in UNBOUNDED_AT_ZERO else value / 1000
        elif name == "uuidRepresentation":
            found[key] = _UUID_REPRESENTATIONS[value]
        elif name == "datetime_conversion":
            found[key] = DatetimeConversion[value]
        else:
            found[key] = value
    insecure = found.get("tlsinsecure")
    if insecure is not None:
        for key in (
            "tlsallowinvalidcertificates",
            "tlsallowinvalidhostnames",
            "tlsdisableocspendpointcheck",
        ):
            found[key] = insecure
    elif found.get("tlsallowinvalidcertificates"):
        found["tlsdisableocspendpointcheck"] = True
    return found


def must_agree(uri: str, where: Place) -> None:
    """Whatever we take, PyMongo takes without a warning, and reads in the same way."""
    ours = check(uri, where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = parse_uri(uri, warn=False)
    assert [(h.name, None if h.is_socket else h.port) for h in ours.uri.hosts] == theirs["nodelist"]
    assert (ours.uri.user, ours.uri.password) == (theirs["username"], theirs["password"] or None)
    assert ours.uri.database == theirs["database"]
    assert theirs["collection"] is None
    assert as_pymongo(ours) == {name.lower(): value for name, value in theirs["options"].items()}


@pytest.mark.parametrize(
    "case", [c for c in GOOD if not c.get("srv")], ids=lambda case: case["uri"]
)
def test_agrees_with_pymongo(case: dict[str, Any]) -> None:
    must_agree(case["uri"], place(case))


def escaped(text: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return text.map(lambda plain: quote(plain, safe=""))


WORDS = escaped(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8)
)
TAGS = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=3), st.text("abc 019-_.", max_size=4), max_size=3
).map(lambda tags: ",".join(f"{name}:{quote(value)}" for name, value in tags.items()))
MILLISECONDS = st.integers(500, 60_000).map(str)
BOOLEANS = st.sampled_from(["true", "false"])
VALUES: dict[str, st.SearchStrategy[str]] = {
    "replicaSet": WORDS, "authSource": WORDS, "appName": WORDS, "tlsCertificateKeyFilePassword": WORDS,
    "tlsCAFile": st.just(quote(__file__)), "tlsCRLFile": st.just(quote(__file__)),
    "tlsCertificateKeyFile": st.just(quote(__file__)),
    "authMechanism": st.sampled_from(MECHANISMS), "readPreference": st.sampled_from(MODES),
    "authMechanismProperties": st.sampled_from(["SERVICE_NAME:a", "SERVICE_REALM:b,SERVICE_HOST:c"]),
    "maxStalenessSeconds": st.sampled_from(["-1", "90", "3600"]),
    "serverMonitoringMode": st.sampled_from(["auto", "stream", "poll"]),
    "compressors": st.permutations(["zlib", "zstd", "snappy"]).map(lambda names: ",".join(names[:2])),
    "zlibCompressionLevel": st.integers(-1, 9).map(str),
    "w": st.one_of(st.just("majority"), st.integers(0, 50).map(str), st.text("abc", min_size=1)),
    "readConcernLevel": st.sampled_from(["local", "majority", "available", "snapshot", "linearizable"]),
    "uuidRepresentation": st.sampled_from(["standard", "unspecified", "javaLegacy", "csharpLegacy", "pythonLegacy"]),
    "unicode_decode_error_handler": st.sampled_from(["strict", "replace", "ignore"]),
    "datetime_conversion": st.sampled_from(["DATETIME", "DATETIME_MS", "DATETIME_AUTO", "DATETIME_CLAMP"]),
    "srvServiceName": WORDS, "srvAllowedHostsSuffix": WORDS,
}  # fmt: skip


def value_of(rule: Rule) -> st.SearchStrategy[str]:
    if rule.name in VALUES:
        return VALUES[rule.name]
    return BOOLEANS if rule.kind.name == "true or false" else MILLISECONDS


@st.composite
def options(draw: st.DrawFn) -> str:
    names = draw(
        st.lists(st.sampled_from(sorted(r.name for r in RULES.values())), unique=True, max_size=6)
    )
    found = []
    for name in names:
        rule = RULES[name.lower()]
        written = draw(st.sampled_from([name, name.lower(), name.upper()]))
        values = (
            draw(st.lists(TAGS, min_size=1, max_size=3))
            if rule.repeatable
            else [draw(value_of(rule))]
        )
        found += [f"{written}={value}" for value in values]
    return "&".join(found)


@st.composite
def uris(draw: st.DrawFn) -> str:
    user = draw(st.one_of(st.just(""), st.builds("{}:{}@".format, WORDS, WORDS)))
    host = st.sampled_from(
        ["h", "H1.example.com", "10.0.0.1", "[::1]", "[FE80::2]", "%2Ftmp%2Fa.sock"]
    )
    port = st.one_of(st.just(""), st.integers(1, 65_535).map(":{}".format))
    hosts = draw(st.lists(st.tuples(host, port), min_size=1, max_size=3))
    named = ",".join(h if h.startswith("%") else h + p for h, p in hosts)
    database = draw(st.one_of(st.just(""), st.text("abc-_", min_size=1, max_size=5)))
    written = draw(options())
    return f"mongodb://{user}{named}/{database}" + (f"?{written}" if written else "")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(uris())
def test_whatever_is_good_is_read_as_pymongo_reads_it(uri: str) -> None:
    if not find_problems(uri, Place.CLIENT):
        must_agree(uri, Place.CLIENT)


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
@pytest.mark.parametrize("source", [None, "shop", "$external"])
@pytest.mark.parametrize("user", ["", "u@", "u:p@"])
def test_whoever_can_log_in_can_do_so_with_pymongo(
    user: str, source: str | None, mechanism: str | None
) -> None:
    """PyMongo's grammar takes more than its clients, which refuse to be made."""
    given = {"tls": "true", "authMechanism": mechanism, "authSource": source}
    written = "&".join(f"{name}={value}" for name, value in given.items() if value is not None)
    text = f"mongodb://{user}h/?{written}"
    if not find_problems(text, Place.CLIENT):
        must_agree(text, Place.CLIENT)
        if mechanism == "MONGODB-OIDC":  # wants a function, too, which no text can give
            text += "&authMechanismProperties=ENVIRONMENT:k8s"
            text = text.replace(f"//{user}", "//")
        MongoClient[dict[str, Any]](text, connect=False).close()
    elif source is None and user == "u:p@":
        assert mechanism in ("MONGODB-X509", "MONGODB-OIDC")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("mongodb://u:p@h/", "admin"),
        ("mongodb://u:p@h/shop", "shop"),
        ("mongodb://u:p@h/?authMechanism=PLAIN", "$external"),
        ("mongodb://u:p@h/shop?authMechanism=PLAIN", "shop"),
        ("mongodb://h/shop?authMechanism=MONGODB-OIDC", "$external"),
        ("mongodb://h/?authMechanism=MONGODB-X509&tls=true", "$external"),
    ],
)
def test_says_where_the_user_is_defined(text: str, source: str) -> None:
    found = effective(check(text, Place.CLIENT))
    assert [option.value for option in found if option.name == "authSource"] == [source]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_every_option_alone_is_one_that_pymongo_knows(rule: Rule) -> None:
    assert rule.name.lower() in URI_OPTIONS_VALIDATOR_MAP


def test_effective_options_say_what_is_given_and_what_holds_anyway() -> None:
    text = "mongodb://u:geheim@h/shop?ssl=true&maxpoolsize=7&tlsCertificateKeyFile=k&tlsCertificateKeyFilePassword=geheim"
    found = {
        option.name: (option.value, option.given) for option in effective(check(text, Place.CLIENT))
    }
    assert found["tls"] == (True, True)
    assert found["maxPoolSize"] == (7, True)
    assert found["readPreference"] == ("primary", False)
    assert found["authSource"] == ("shop", False)
    assert "ssl" not in found
    assert "geheim" not in str(found)
    srv = effective(check("mongodb+srv://a.b.c/", Place.CLIENT))
    assert [option.value for option in srv if option.name == "tls"] == [True]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mongodb://u:pw@h/", "mongodb://u:**@h/"),
        ("mongodb://u@h:1/?appName=a", "mongodb://u@h:1/?appName=a"),
        ("mongodb://h:1/?authSource=x", "mongodb://h:1/?authSource=x"),
        ("mongodb://u:p@s/w@h/", "mongodb://u:*****@h/"),
        ("u:pw@h", "u:**@h"),
        ("mongodb://h/?TLSCertificateKeyFilePassword=pw&tls=true", "mongodb://h/?TLSCertificateKeyFilePassword=**&tls=true"),
    ],
)  # fmt: skip
def test_masks_secrets_in_their_own_length(text: str, shown: str) -> None:
    try:
        uri = parse(text)
    except UriError:
        uri = None
    assert mask(text, uri) == shown


def test_tells_every_problem_in_order() -> None:
    text = "mongodb://u:p@h/shop?bogus=1&tls=yes&w=1"
    problems = find_problems(text, Place.MANIFEST)
    assert [p.start for p in problems] == [10, 15, 16, 21, 33, 39]
    assert not any("p@h" in str(p) for p in problems)


def test_a_missing_slash_hides_no_other_problem() -> None:
    text = "mongodb://u:geheim@h?replicaSet=r&bogus=1&tls=yes"
    found = [(text[p.start : p.end], p.reason) for p in find_problems(text, Place.MANIFEST)]
    assert [piece for piece, _ in found] == ["u:geheim", "?", "bogus", "yes"]
    assert "credentials" in found[0][1]
    assert "no '/'" in found[1][1]
    assert not any("geheim" in reason for _, reason in found)
    without = [p.start for p in find_problems("mongodb://h?w=majority", Place.MANIFEST)]
    assert without == [11, 11], "the '/', and no replicaSet"


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
