"""Every option of connection strings: its type, its range, whether it repeats, where it may stand."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from thermocline_common.uri.parse import Option, Uri
from thermocline_common.uri.problems import UriProblem


class Place(StrEnum):
    """Where a connection string stands, and so which options mean anything in it."""

    CLIENT = "client"
    """An application's, for any driver."""
    MANIFEST = "manifest"
    """A tier's in the resource: without credentials and without files."""


class ValueProblem(ValueError):
    """A value that its option doesn't take; the text is the remedy ("write ...")."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read: ``read`` returns it typed or raises :class:`ValueProblem`."""

    name: str
    read: Callable[[str], Any]


def _boolean(value: str) -> bool:
    if value in ("true", "false"):
        return value == "true"
    raise ValueProblem("write true or false, in lower case")


def _integer(low: int, high: int = 2_147_483_647, also: int | None = None) -> Kind:
    def read(value: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,10}", value, re.ASCII):
            number = int(value)
            if low <= number <= high or number == also:
                return number
        extra = "" if also is None else f", or {also}"
        raise ValueProblem(f"write a whole number from {low} to {high}{extra}")

    return Kind(f"whole number from {low}", read)


def _choice(*choices: str) -> Kind:
    def read(value: str) -> str:
        if value in choices:
            return value
        near = next((c for c in choices if c.lower() == value.lower()), None)
        raise ValueProblem(f"write {near}" if near else f"write one of {', '.join(choices)}")

    return Kind(f"one of {', '.join(choices)}", read)


def _text(value: str) -> str:
    if not value:
        raise ValueProblem("write a value, or leave the option out")
    return value


def _app_name(value: str) -> str:
    if not value or len(value.encode()) > 128:
        raise ValueProblem("write 1 to 128 bytes")
    return value


def _tags(value: str) -> dict[str, str]:
    """One tag set; an empty one matches any member."""
    tags: dict[str, str] = {}
    for part in value.split(",") if value else ():
        name, colon, tag = part.partition(":")
        if not colon or not name or name in tags:
            raise ValueProblem("write name:value, tags separated by commas, each name once")
        tags[name] = tag
    return tags


def _compressors(value: str) -> list[str]:
    names = value.split(",")
    if len(set(names)) != len(names) or not set(names) <= {"snappy", "zlib", "zstd"}:
        raise ValueProblem("write some of snappy, zlib, zstd, separated by commas")
    return names


def _write_concern(value: str) -> int | str:
    if re.fullmatch(r"-?[0-9]+", value, re.ASCII):
        if 0 <= int(value) <= 50:
            return int(value)
        raise ValueProblem("write majority, a number from 0 to 50, or the name of a mode")
    return _text(value)


def _properties(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in value.split(","):
        name, colon, text = part.partition(":")
        if not colon or not name:
            raise ValueProblem("write NAME:value, separated by commas")
        found[name] = text
    return found


BOOLEAN: Final = Kind("true or false", _boolean)
TEXT: Final = Kind("text", _text)
COUNT: Final = _integer(0)
MECHANISMS: Final = (
    "SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509", "MONGODB-AWS", "MONGODB-OIDC", "GSSAPI", "PLAIN", "DEFAULT",
)  # fmt: skip
MODES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")


@dataclass(frozen=True, slots=True)
class Rule:
    """One option. ``manifest``: None where a tier's URI may have it, else why not and what to do.

    ``fixed``: the one value that a tier's URI may give, because the services work so anyway.
    """

    name: str
    kind: Kind
    repeatable: bool = False
    secret: bool = False
    manifest: str | None = None
    fixed: Any = None


_FILES = "give the file by spec.*.tls and its Secret"
_OURS = "take it out: Thermocline sets it itself"
_CLIENTS = "take it out: applications say this for themselves"
_POOL = "take it out; spec.proxy.maxUpstreamConnections bounds connections"
_SET = "take it out: a tier is a replica set, named by replicaSet"

_RULES: Final = (
    Rule("replicaSet", TEXT),
    Rule("tls", BOOLEAN),
    Rule("ssl", BOOLEAN),
    Rule("tlsInsecure", BOOLEAN),
    Rule("tlsAllowInvalidCertificates", BOOLEAN),
    Rule("tlsAllowInvalidHostnames", BOOLEAN),
    Rule("tlsDisableOCSPEndpointCheck", BOOLEAN),
    Rule("tlsDisableCertificateRevocationCheck", BOOLEAN, manifest=_OURS),
    Rule("tlsCAFile", TEXT, manifest=_FILES),
    Rule("tlsCRLFile", TEXT, manifest=_FILES),
    Rule("tlsCertificateKeyFile", TEXT, manifest=_FILES),
    Rule("tlsCertificateKeyFilePassword", TEXT, secret=True, manifest=_FILES),
    Rule("authSource", TEXT),
    Rule(
        "authMechanism",
        _choice(*MECHANISMS),
    ),
    Rule(
        "authMechanismProperties",
        Kind("properties", _properties),
        secret=True,
        manifest="take it out: the services log in with SCRAM or a certificate",
    ),
    Rule("gssapiServiceName", TEXT, manifest="take it out: the services log in with SCRAM"),
    Rule("readPreference", _choice(*MODES)),
    Rule("readPreferenceTags", Kind("tag set", _tags), repeatable=True),
    Rule("maxStalenessSeconds", _integer(90, also=-1)),
    Rule("localThresholdMS", _integer(0, 60_000)),
    Rule("connectTimeoutMS", _integer(100, 60_000)),
    Rule("heartbeatFrequencyMS", _integer(500, 120_000)),
    Rule("serverMonitoringMode", _choice("auto", "stream", "poll")),
    Rule("compressors", Kind("list", _compressors), manifest=_OURS),
    Rule("zlibCompressionLevel", _integer(-1, 9), manifest=_OURS),
    Rule("srvServiceName", TEXT),
    Rule("srvMaxHosts", COUNT, manifest="take it out: every member has to be known"),
    Rule("retryWrites", BOOLEAN, fixed=True),
    Rule("retryReads", BOOLEAN, fixed=True),
    Rule("w", Kind("write concern", _write_concern), fixed="majority"),
    Rule("wtimeoutMS", COUNT, manifest=_CLIENTS),
    Rule("wtimeout", COUNT, manifest=_CLIENTS),
    Rule("journal", BOOLEAN, manifest=_CLIENTS),
    Rule("fsync", BOOLEAN, manifest=_CLIENTS),
    Rule(
        "readConcernLevel",
        _choice("local", "majority", "linearizable", "available", "snapshot"),
        manifest=_CLIENTS,
    ),
    Rule("appName", Kind("text", _app_name), manifest=_OURS),
    Rule("serverSelectionTimeoutMS", _integer(1), manifest=_OURS),
    Rule("socketTimeoutMS", COUNT, manifest=_OURS),
    Rule("timeoutMS", COUNT, manifest=_OURS),
    Rule("maxPoolSize", COUNT, manifest=_POOL),
    Rule("minPoolSize", COUNT, manifest=_POOL),
    Rule("maxConnecting", _integer(1), manifest=_POOL),
    Rule("maxIdleTimeMS", COUNT, manifest=_POOL),
    Rule("waitQueueTimeoutMS", COUNT, manifest=_POOL),
    Rule("waitQueueMultiple", COUNT, manifest=_POOL),
    Rule("directConnection", BOOLEAN, manifest=_SET),
    Rule("loadBalanced", BOOLEAN, manifest=_SET),
    Rule(
        "uuidRepresentation",
        _choice("standard", "unspecified", "javaLegacy", "csharpLegacy", "pythonLegacy"),
        manifest=_CLIENTS,
    ),
    Rule("tz_aware", BOOLEAN, manifest=_CLIENTS),
    Rule("unicode_decode_error_handler", _choice("strict", "replace", "ignore"), manifest=_CLIENTS),
    Rule("datetime_conversion", TEXT, manifest=_CLIENTS),
)
RULES: Final[Mapping[str, Rule]] = {rule.name.lower(): rule for rule in _RULES}
"""By lower-case name: names of options don't depend on case, values do."""

_FORMER: Final = {
    "ssl_ca_certs": "tlsCAFile",
    "sslcertificateauthorityfile": "tlsCAFile",
    "ssl_certfile": "tlsCertificateKeyFile",
    "sslclientcertificatekeyfile": "tlsCertificateKeyFile",
    "sslpemkeyfile": "tlsCertificateKeyFile",
    "ssl_keyfile": "tlsCertificateKeyFile",
    "ssl_pem_passphrase": "tlsCertificateKeyFilePassword",
    "ssl_crlfile": "tlsCRLFile",
    "ssl_cert_reqs": "tlsAllowInvalidCertificates",
    "ssl_match_hostname": "tlsAllowInvalidHostnames",
    "slaveok": "readPreference",
    "j": "journal",
    "safe": "w",
}
"""Names that drivers had once; nearness of spelling wouldn't find the new ones."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options, typed: by their canonical names (a repeatable one's value is a list), and where each stands."""

    values: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Option] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """The typed value, or ``default`` where the option isn't given."""
        return self.values.get(name, default)


def read_options(uri: Uri, place: Place) -> tuple[Options, list[UriProblem]]:
    """The options of ``uri``, typed, with every problem that one option has by itself."""
    values: dict[str, Any] = {}
    written: dict[str, Option] = {}
    problems: list[UriProblem] = []
    for option in uri.options:
        rule = RULES.get(option.name.lower())
        if rule is None:
            problems.append(
                UriProblem(option.start, option.value_start - 1, *_unknown(option.name))
            )
            continue
        if rule.name in written and not rule.repeatable:
            problems.append(
                UriProblem(
                    option.start, option.end, f"{rule.name} is given twice", "keep one of them"
                )
            )
            continue
        written[rule.name] = option
        if place is Place.MANIFEST and rule.manifest is not None:
            problems.append(
                UriProblem(
                    option.start, option.end, f"{rule.name} has no place here", rule.manifest
                )
            )
            continue
        try:
            value = rule.kind.read(option.value)
        except ValueProblem as error:
            problems.append(
                UriProblem(
                    option.value_start,
                    max(option.end, option.value_start + 1),
                    f"{rule.name} doesn't take this value",
                    str(error),
                )
            )
            continue
        if place is Place.MANIFEST and rule.fixed is not None and value != rule.fixed:
            text = str(rule.fixed).lower()
            problems.append(
                UriProblem(
                    option.value_start,
                    option.end,
                    f"{rule.name} can only be {text} here",
                    "take it out: applications say this for themselves",
                )
            )
            continue
        if rule.repeatable:
            values.setdefault(rule.name, []).append(value)
        else:
            values[rule.name] = value
    return Options(values, written), problems


def _unknown(name: str) -> tuple[str, str]:
    former = _FORMER.get(name.lower())
    near = difflib.get_close_matches(name.lower(), RULES, n=1, cutoff=0.6)
    meant = former or (RULES[near[0]].name if near else None)
    # A name can be part of a password with an unescaped '&'; the name alone is no secret otherwise.
    return "no option of this name exists", f"did you mean {meant}?" if meant else "take it out"
