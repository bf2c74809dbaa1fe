"""Rules that the API server checks itself, by the path of the field. Whatever they refuse, ``rules`` refuses too.

They look at fields whose length is bounded, or the API server would refuse the CRD as too costly.
``namespace`` is a reserved word in CEL, hence ``__namespace__``.
"""

from dataclasses import dataclass
from typing import Final

from thermocline_common.durations import PATTERN, SHORT_PATTERN
from thermocline_common.namespace import SYSTEM_DATABASES
from thermocline_common.spec.fields import AGE_FIELD_PATTERN, NAMESPACE_PATTERN


@dataclass(frozen=True, slots=True)
class CelRule:
    """``rule`` is true where all is well; ``message`` says what isn't, and what to do."""

    rule: str
    message: str


_MILLISECONDS: Final = (
    "(self.endsWith('ms') ? int(self.substring(0, self.size() - 2)) : "
    "int(self.substring(0, self.size() - 1)) * (self.endsWith('s') ? 1000 : self.endsWith('m') ? 60000 : "
    "self.endsWith('h') ? 3600000 : self.endsWith('d') ? 86400000 : 604800000))"
)


def _formed(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\").replace("'", "\\'")
    return f"self.matches('{escaped}')"


def _span(pattern: str, units: str, low_ms: int, high_ms: int, text: str) -> tuple[CelRule, ...]:
    """The form, whose pattern alone would tell nobody what to write, then the range.

    CEL's own ``duration()`` knows no days.
    """
    formed = _formed(pattern)
    return (
        CelRule(formed, f"write a whole number from 1 up and {units}, such as 30{units[0]}"),
        CelRule(
            f"!{formed} || ({_MILLISECONDS} >= {low_ms} && {_MILLISECONDS} <= {high_ms})",
            f"use {text}",
        ),
    )


def _age(low_ms: int, high_ms: int, text: str) -> tuple[CelRule, ...]:
    return _span(PATTERN, "d (or s, m, h, w)", low_ms, high_ms, text)


def _time(low_ms: int, high_ms: int, text: str) -> tuple[CelRule, ...]:
    return _span(SHORT_PATTERN, "s (or ms, m, h, d, w)", low_ms, high_ms, text)


_URI: Final = (
    CelRule(
        "self.startsWith('mongodb://') || self.startsWith('mongodb+srv://')",
        "begin with mongodb:// or mongodb+srv://",
    ),
    CelRule(
        "!self.contains('@')",
        "credentials in the URI; take them out and name a Secret with username and password in "
        "credentialsSecretRef",
    ),
    CelRule(
        "!self.matches('^mongodb(\\\\+srv)?://[^/?]*\\\\?')",
        "no '/' between the hosts and the '?'; write '/?'",
    ),
    CelRule(
        "self.startsWith('mongodb+srv://') || self.matches('(?i)[?&]replicaset=[^&]')",
        "no replicaSet; add replicaSet=<name>: a tier is a replica set",
    ),
)
_STALENESS: Final = (CelRule("self == -1 || self >= 90", "use at least 90, or -1 for no limit"),)
_PACE: Final = (
    CelRule(
        "type(self) == int ? self >= 1 : string(self).matches('^(Auto|[1-9][0-9]{0,8})$')",
        "write Auto, or documents a second from 1 up",
    ),
)
_DATABASES: Final = "|".join(sorted(SYSTEM_DATABASES))

CEL_RULES: Final[dict[str, tuple[CelRule, ...]]] = {
    "": (
        CelRule(
            "self.metadata.name.size() <= 40 && "
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be a DNS label of at most 40 characters, as the names of Services are "
            "made from it",
        ),
    ),
    "spec": (
        CelRule(
            "self.archive.uri != self.fastTier.uri",
            "fastTier names the archive's own servers; give the fast tier a replica set of its own",
        ),
    ),
    "spec.archive.uri": _URI,
    "spec.fastTier.uri": _URI,
    "spec.archive.maxStalenessSeconds": _STALENESS,
    "spec.fastTier.maxStalenessSeconds": _STALENESS,
    "spec.collections[]": (
        CelRule(
            "!(has(self.keep) && (has(self.ageField) || has(self.maxAge)))",
            "has both keep and an age; use either keep: All, or ageField with maxAge",
        ),
        CelRule(
            "has(self.keep) || has(self.ageField) || has(self.maxAge)",
            "says neither which age nor that everything is kept; add ageField with maxAge, or keep: All",
        ),
        CelRule(
            "has(self.ageField) == has(self.maxAge)",
            "ageField and maxAge belong together; add the missing one",
        ),
    ),
    "spec.collections[].namespace": (
        CelRule(_formed(NAMESPACE_PATTERN), "write database.collection, such as shop.orders"),
        CelRule(
            f"!self.matches('(?i)^({_DATABASES})\\\\.')",
            "is in a database that is never tiered; name a collection of an application's database",
        ),
        CelRule(
            "!self.matches('^[^.]+\\\\.system\\\\.')",
            "is one of MongoDB's own collections; name a collection of the application",
        ),
    ),
    "spec.collections[].ageField": (
        CelRule(_formed(AGE_FIELD_PATTERN), "write the path of a field, such as meta.createdAt"),
        CelRule(
            "self != '_id'", "is the document's id, which tells no age; name a field with a date"
        ),
        CelRule(
            "!self.matches('(^|\\\\.)[0-9]+(\\\\.|$)')",
            "points into an array, and an array has no single age; name a field with a date",
        ),
    ),
    "spec.collections[].maxAge": _age(1_000, 36_500 * 86_400_000, "at most 36500d"),
    "spec.proxy.lease": _time(100, 30_000, "100ms to 30s"),
    "spec.proxy.barrierTimeout": _time(100, 600_000, "100ms to 10m"),
    "spec.proxy.drainTimeout": _time(1_000, 3_600_000, "1s to 1h"),
    "spec.feeder.pace": _PACE,
    "spec.evictor.pace": _PACE,
    "spec.warmer.pace": _PACE,
}
"""By path; ``[]`` stands for the entries of a list, the empty path for the resource."""
