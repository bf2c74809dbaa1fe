"""Every option of connection strings: its type, its range, whether it repeats, where it may stand."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from thermocline_common.uri.kinds import (
    APP_NAME,
    BOOLEAN,
    COMPRESSORS,
    COUNT,
    POSITIVE_MS,
    PROPERTIES,
    TAG_SET,
    TEXT,
    TIME_MS,
    WRITE_CONCERN,
    Kind,
    ValueProblem,
    choice,
    integer,
)
from thermocline_common.uri.parse import Option, Uri
from thermocline_common.uri.problems import UriProblem


class Place(StrEnum):
    """Where a connection string stands, and so which options mean anything in it."""

    CLIENT = "client"
    """An application's, for any driver."""
    MANIFEST = "manifest"
    """A tier's in the resource: without credentials and without files."""


MECHANISMS: Final = (
    "SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509", "MONGODB-AWS", "MONGODB-OIDC", "GSSAPI", "PLAIN", "DEFAULT",
)  # fmt: skip
MODES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")


@dataclass(frozen=True, slots=True)
class Rule:
    """One option. ``manifest``: None where a tier's URI may have it, else why not and what to do.

    ``fixed``: the one value that a tier's URI may give, because the services work so anyway.
    ``default``: what holds where the option isn't given, in every driver; None: differs, or nothing.
    """

    name: str
    kind: Kind
    repeatable: bool = False
    secret: bool = False
    manifest: str | None = None
    fixed: Any = None
    default: Any = None


_FILES = "give the file by spec.*.tls and its Secret"
_OURS = "take it out: Thermocline sets it itself"
_CLIENTS = "take it out: applications say this for themselves"
_POOL = "take it out; spec.proxy.maxUpstreamConnections bounds connections"
_SET = "take it out: a tier is a replica set, named by replicaSet"
_LOG_IN = "take it out: the services log in with SCRAM or a certificate"

_RULES: Final = (
    Rule("replicaSet", TEXT),
    Rule("tls", BOOLEAN, default=False),
    Rule("ssl", BOOLEAN),
    Rule("tlsInsecure", BOOLEAN),
    Rule("tlsAllowInvalidCertificates", BOOLEAN),
    Rule("tlsAllowInvalidHostnames", BOOLEAN),
    Rule("tlsDisableOCSPEndpointCheck", BOOLEAN),
    Rule("tlsCAFile", TEXT, manifest=_FILES),
    Rule("tlsCRLFile", TEXT, manifest=_FILES),
    Rule("tlsCertificateKeyFile", TEXT, manifest=_FILES),
    Rule("tlsCertificateKeyFilePassword", TEXT, secret=True, manifest=_FILES),
    Rule("authSource", TEXT),
    Rule("authMechanism", choice(*MECHANISMS)),
    Rule("authMechanismProperties", PROPERTIES, secret=True, manifest=_LOG_IN),
    Rule("readPreference", choice(*MODES), default="primary"),
    Rule("readPreferenceTags", TAG_SET, repeatable=True),
    Rule("maxStalenessSeconds", integer(90, also=-1), default=-1),
    Rule("localThresholdMS", integer(0, 60_000), default=15),
    Rule("connectTimeoutMS", integer(100, 60_000)),
    Rule("heartbeatFrequencyMS", integer(500, 120_000), default=10_000),
    Rule("serverMonitoringMode", choice("auto", "stream", "poll"), default="auto"),
    Rule("compressors", COMPRESSORS, manifest=_OURS),
    Rule("zlibCompressionLevel", integer(-1, 9), manifest=_OURS),
    Rule("srvServiceName", TEXT),
    Rule("srvMaxHosts", COUNT, manifest="take it out: every member has to be known"),
    Rule("srvAllowedHostsSuffix", TEXT, manifest=_SET),
    Rule("retryWrites", BOOLEAN, fixed=True, default=True),
    Rule("retryReads", BOOLEAN, fixed=True, default=True),
    Rule("w", WRITE_CONCERN, fixed="majority"),
    Rule("wtimeoutMS", COUNT, manifest=_CLIENTS),
    Rule("journal", BOOLEAN, manifest=_CLIENTS),
    Rule("fsync", BOOLEAN, manifest=_CLIENTS),
    Rule(
        "readConcernLevel",
        choice("local", "majority", "linearizable", "available", "snapshot"),
        manifest=_CLIENTS,
    ),
    Rule("appName", APP_NAME, manifest=_OURS),
    Rule("serverSelectionTimeoutMS", POSITIVE_MS, manifest=_OURS, default=30_000),
    Rule("socketTimeoutMS", TIME_MS, manifest=_OURS),
    Rule("timeoutMS", TIME_MS, manifest=_OURS),
    Rule("maxPoolSize", COUNT, manifest=_POOL, default=100),
    Rule("minPoolSize", COUNT, manifest=_POOL, default=0),
    Rule("maxConnecting", integer(1), manifest=_POOL, default=2),
    Rule("maxIdleTimeMS", POSITIVE_MS, manifest=_POOL),
    Rule("waitQueueTimeoutMS", POSITIVE_MS, manifest=_POOL),
    Rule("waitQueueMultiple", COUNT, manifest=_POOL),
    Rule("directConnection", BOOLEAN, manifest=_SET, default=False),
    Rule("loadBalanced", BOOLEAN, manifest=_SET, default=False),
    Rule("maxAdaptiveRetries", COUNT, manifest=_OURS),
    Rule("enableOverloadRetargeting", BOOLEAN, manifest=_OURS),
    Rule(
        "uuidRepresentation",
        choice("standard", "unspecified", "javaLegacy", "csharpLegacy", "pythonLegacy"),
        manifest=_CLIENTS,
    ),
    Rule("tz_aware", BOOLEAN, manifest=_CLIENTS),
    Rule(
        "unicode_decode_error_handler",
        choice("strict", "replace", "ignore", "backslashreplace", "surrogateescape"),
        manifest=_CLIENTS,
    ),
    Rule(
        "datetime_conversion",
        choice("DATETIME", "DATETIME_CLAMP", "DATETIME_MS", "DATETIME_AUTO"),
        manifest=_CLIENTS,
    ),
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
    "wtimeout": "wtimeoutMS",
    "gssapiservicename": "authMechanismProperties",
    "tlsdisablecertificaterevocationcheck": "tlsDisableOCSPEndpointCheck",
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
            value = rule.kind.typed(option.value, option.raw)
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
