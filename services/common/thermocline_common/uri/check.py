"""A connection string as a whole: grammar, options, and what they say about each other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from thermocline_common.uri.options import Options, Place, read_options
from thermocline_common.uri.parse import Uri, parse
from thermocline_common.uri.problems import SlashError, UriError, UriProblem

_TLS_DETAILS = (
    "tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames", "tlsDisableOCSPEndpointCheck",
    "tlsCAFile", "tlsCRLFile", "tlsCertificateKeyFile", "tlsCertificateKeyFilePassword",
)  # fmt: skip
_EXCLUSIVE = (
    ("tlsInsecure", "tlsAllowInvalidCertificates"), ("tlsInsecure", "tlsAllowInvalidHostnames"),
    ("tlsInsecure", "tlsDisableOCSPEndpointCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableOCSPEndpointCheck"),
)  # fmt: skip
"""Pairs of which drivers refuse the second beside the first, whatever their values."""
EXTERNAL: Final = frozenset({"MONGODB-X509", "MONGODB-AWS", "MONGODB-OIDC", "GSSAPI"})
"""Mechanisms whose users are defined outside of MongoDB: in ``$external``, and nowhere else."""
_SMALLEST_STALENESS = 90
_IDLE_WRITE_PERIOD_S = 10


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection string that was found good: its parts and its typed options."""

    uri: Uri
    options: Options

    @property
    def tls(self) -> bool:
        """Whether connections use TLS."""
        return bool(self.options.get("tls", self.options.get("ssl", self.uri.srv)))

    @property
    def replica_set(self) -> str | None:
        """The set's name."""
        name = self.options.get("replicaSet")
        return None if name is None else str(name)


def check(text: str, place: Place) -> Connection:
    """The connection that ``text`` describes. Raises :class:`UriError` with every problem."""
    try:
        uri = parse(text)
    except SlashError as error:
        raise UriError(_in_order([*error.problems, *_once_mended(text, error, place)])) from None
    options, problems = read_options(uri, place)
    problems += _together(uri, options)
    if place is Place.MANIFEST:
        problems += _in_manifest(uri, options)
    else:
        problems += _user(uri, options)
    if problems:
        raise UriError(_in_order(problems))
    return Connection(uri, options)


def _in_order(problems: list[UriProblem]) -> list[UriProblem]:
    return sorted(problems, key=lambda problem: (problem.start, problem.end))


def _once_mended(text: str, error: SlashError, place: Place) -> Iterator[UriProblem]:
    """What is wrong besides the missing ``/``, with its places in ``text``."""
    at = error.problems[0].start
    for problem in find_problems(f"{text[:at]}/{text[at:]}", place):
        start, end = (where - (where > at) for where in (problem.start, problem.end))
        yield replace(problem, start=start, end=max(end, start + 1))


def find_problems(text: str, place: Place) -> list[UriProblem]:
    """Every problem of ``text``; none: it is good."""
    try:
        check(text, place)
    except UriError as error:
        return list(error.problems)
    return []


def _together(uri: Uri, options: Options) -> Iterator[UriProblem]:
    yield from _tls(uri, options)
    yield from _reads(options)
    yield from _topology(uri, options)
    level = options.written.get("zlibCompressionLevel")
    if level and "zlib" not in options.get("compressors", ()):
        yield _at(options, "zlibCompressionLevel", "has no effect", "add zlib to compressors")
    mechanism = options.get("authMechanism")
    if mechanism in ("MONGODB-X509", "MONGODB-OIDC") and uri.password is not None:
        yield _at(options, "authMechanism", "takes no password", "take the password out")
    if mechanism == "MONGODB-X509" and options.get("tls", options.get("ssl", uri.srv)) is False:
        yield _at(options, "authMechanism", "needs TLS", "add tls=true")
    if mechanism in EXTERNAL and options.get("authSource", "$external") != "$external":
        yield _at(
            options, "authSource", f"can only be $external with {mechanism}", "take authSource out"
        )
    least, most = options.get("minPoolSize", 0), options.get("maxPoolSize", 100)
    if 0 < most < least:
        yield _at(options, "minPoolSize", f"is above maxPoolSize, {most}", "make it smaller")
    if options.get("w") == 0 and options.get("journal"):
        yield _at(options, "journal", "contradicts w=0", "keep one of them")
    if options.get("journal") and options.get("fsync"):
        yield _at(options, "fsync", "can't stand beside journal", "keep journal alone")


def _at(options: Options, name: str, reason: str, remedy: str) -> UriProblem:
    option = options.written[name]
    return UriProblem(option.start, option.end, f"{name} {reason}", remedy)


def _tls(uri: Uri, options: Options) -> Iterator[UriProblem]:
    tls, ssl = options.get("tls"), options.get("ssl")
    if tls is not None and ssl is not None and tls != ssl:
        yield _at(options, "ssl", "contradicts tls", "keep tls alone")
    if any(name in options.written and name not in options.values for name in ("tls", "ssl")):
        return  # one of them has a bad value, which is told already: anything else would be a guess
    on = tls if tls is not None else ssl if ssl is not None else uri.srv
    if not on:
        for name in _TLS_DETAILS:
            if name in options.values:
                yield _at(
                    options, name, "has no effect without tls=true", "add tls=true, or take it out"
                )
    for first, second in _EXCLUSIVE:
        if first in options.values and second in options.values:
            yield _at(options, second, f"can't stand beside {first}", "keep one of them")
    for name in ("tlsInsecure", "tlsAllowInvalidCertificates", "tlsDisableOCSPEndpointCheck"):
        if "tlsCRLFile" in options.values and options.get(name):
            yield _at(options, name, "contradicts tlsCRLFile", "keep one of them")
    if "tlsCertificateKeyFilePassword" in options.values and "tlsCertificateKeyFile" not in (
        options.written
    ):
        yield _at(
            options,
            "tlsCertificateKeyFilePassword",
            "has no effect without tlsCertificateKeyFile",
            "add the file, or take it out",
        )


def _reads(options: Options) -> Iterator[UriProblem]:
    mode = options.get("readPreference", "primary")
    if "readPreference" in options.written and "readPreference" not in options.values:
        return
    remedy = "use another readPreference, or take it out"
    tags = options.get("readPreferenceTags")
    if mode == "primary" and tags is not None:
        yield _at(options, "readPreferenceTags", "has no meaning with primary", remedy)
    elif tags and {} in tags[:-1]:
        yield _at(
            options,
            "readPreferenceTags",
            "has a tag set behind the empty one",
            "put the empty one last",
        )
    staleness = options.get("maxStalenessSeconds", -1)
    if mode == "primary" and staleness != -1:
        yield _at(options, "maxStalenessSeconds", "has no meaning with primary", remedy)
    smallest = options.get("heartbeatFrequencyMS", 10_000) / 1000 + _IDLE_WRITE_PERIOD_S
    if staleness != -1 and staleness < smallest:
        yield _at(
            options,
            "maxStalenessSeconds",
            "is below heartbeatFrequencyMS plus 10 seconds",
            f"use at least {max(_SMALLEST_STALENESS, int(smallest + 0.999))}",
        )


def _topology(uri: Uri, options: Options) -> Iterator[UriProblem]:
    direct, balanced = options.get("directConnection"), options.get("loadBalanced")
    if direct and (uri.srv or len(uri.hosts) > 1):
        yield _at(options, "directConnection", "needs exactly one host", "take it out")
    if balanced:
        if len(uri.hosts) > 1:
            yield _at(options, "loadBalanced", "needs exactly one host", "take it out")
        for name in ("replicaSet", "directConnection", "srvMaxHosts"):
            if options.get(name):
                yield _at(options, name, "can't stand beside loadBalanced", "keep one of them")
    if options.get("srvMaxHosts") and options.get("replicaSet"):
        yield _at(options, "srvMaxHosts", "can't stand beside replicaSet", "keep one of them")
    for name in ("srvMaxHosts", "srvServiceName", "srvAllowedHostsSuffix"):
        if name in options.values and not uri.srv:
            yield _at(options, name, "needs mongodb+srv://", "take it out")


def _user(uri: Uri, options: Options) -> Iterator[UriProblem]:
    """Who logs in, and with what: drivers refuse these once they are to connect."""
    mechanism = options.get("authMechanism")
    if mechanism is not None and uri.user is None:
        if mechanism not in EXTERNAL - {"GSSAPI"}:
            yield _at(options, "authMechanism", "needs a user", "write user:password@")
    elif mechanism is None and "authMechanism" in options.written:
        return  # which one is meant isn't known, and told already
    elif (
        uri.userinfo is not None
        and uri.password is None
        and mechanism not in EXTERNAL - {"MONGODB-AWS"}
    ):
        yield UriProblem(*uri.userinfo, "a user without a password", "write user:password@")


def _in_manifest(uri: Uri, options: Options) -> Iterator[UriProblem]:
    if uri.userinfo is not None:
        yield UriProblem(
            *uri.userinfo,
            "credentials in the URI",
            "take them out and name a Secret with username and password in credentialsSecretRef",
        )
    for host in uri.hosts:
        if host.is_socket:
            yield UriProblem(host.start, host.end, "a Unix socket", "write host:port")
    if uri.database is not None:
        yield UriProblem(
            uri.database_start,
            uri.database_start + len(uri.database),
            "a database, which has no effect here",
            "take it out; authSource says where the user is defined",
        )
    if not uri.srv and "replicaSet" not in options.written:
        end = uri.hosts[-1].end
        yield UriProblem(
            end, end + 1, "no replicaSet", "add replicaSet=<name>: a tier is a replica set"
        )
    mechanism = options.get("authMechanism")
    if mechanism not in (None, "DEFAULT", "SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509"):
        yield _at(
            options, "authMechanism", "can't be used by the services", "use SCRAM or MONGODB-X509"
        )
