"""Field types of the resource: how a text becomes a value, and what the CRD says about it."""

import datetime as dt
import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from thermocline_common import durations, namespace as names

DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAMESPACE_PATTERN: Final = r'^[^/\\. "$*<>:|?]{1,63}\.[^.$ ]([^$]*[^$ ])?$'
AGE_FIELD_PATTERN: Final = r"^[^.$ ][^.]*(\.[^.$][^.]*)*$"


def refusal(kind: str, reason: str, remedy: str) -> PydanticCustomError:
    """A pydantic error that carries what a :class:`Problem` needs."""
    # Braces would be taken for placeholders of the message template.
    return PydanticCustomError(kind, "{reason}", {"reason": reason, "remedy": remedy})


def _duration(short: bool) -> Callable[[Any], Any]:
    def validate(value: Any) -> Any:
        if isinstance(value, dt.timedelta):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            example = "5s" if short else "30d"
            if value <= 0:
                reason = "is negative" if value < 0 else "is zero"
                raise refusal("duration", reason, f"write a text such as {example}")
            if not isinstance(value, int):  # 1.5d is no duration either
                raise refusal("duration", "is not a duration", f"write a text such as {example}")
            raise refusal("duration", "has no unit", f"write a text such as {value}s or {value}d")
        if not isinstance(value, str):
            raise refusal("duration_type", "is not a duration", "write a text such as 30d")
        try:
            return durations.parse_duration(value, short=short)
        except durations.DurationError as error:
            raise refusal("duration", error.reason, error.remedy) from error

    return validate


def at_least(least: str, most: str) -> Callable[[dt.timedelta], dt.timedelta]:
    """A check that a span lies between two durations, both included."""
    low = durations.parse_duration(least, short=True)
    high = durations.parse_duration(most, short=True)

    def validate(value: dt.timedelta) -> dt.timedelta:
        if not low <= value <= high:
            raise refusal("duration_range", "is out of range", f"use {least} to {most}")
        return value

    return validate


Duration = Annotated[
    dt.timedelta,
    BeforeValidator(_duration(short=False)),
    PlainSerializer(durations.format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": durations.PATTERN, "maxLength": 10}),
]
"""An age: a whole number of seconds, minutes, hours, days or weeks."""

ShortDuration = Annotated[
    dt.timedelta,
    BeforeValidator(_duration(short=True)),
    PlainSerializer(durations.format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": durations.SHORT_PATTERN, "maxLength": 11}),
]
"""A lease or time-out: like :data:`Duration`, or in milliseconds."""


def _namespace(value: str) -> str:
    try:
        return str(names.parse_tiered_namespace(value))
    except names.NamespaceError as error:
        raise refusal("namespace", error.reason, error.remedy) from error


def _age_field(value: str) -> str:
    try:
        return names.check_age_field(value)
    except names.NamespaceError as error:
        raise refusal("age_field", error.reason, error.remedy) from error


TieredNamespace = Annotated[
    str,
    BeforeValidator(lambda value: _namespace(value) if isinstance(value, str) else value),
    WithJsonSchema(
        {"type": "string", "pattern": NAMESPACE_PATTERN, "minLength": 3, "maxLength": 255}
    ),
]
AgeField = Annotated[
    str,
    BeforeValidator(lambda value: _age_field(value) if isinstance(value, str) else value),
    WithJsonSchema(
        {"type": "string", "pattern": AGE_FIELD_PATTERN, "minLength": 1, "maxLength": 255}
    ),
]


def _object_name(value: Any) -> Any:
    if isinstance(value, str) and not (
        len(value) <= 253 and re.fullmatch(DNS_SUBDOMAIN, value, re.ASCII)
    ):
        raise refusal(
            "object_name",
            "is not the name of a Kubernetes object",
            "use lower-case letters, digits, '-' and '.'",
        )
    return value


ObjectName = Annotated[
    str,
    BeforeValidator(_object_name),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 253}),
]
"""Without a pattern in the CRD: the API server would print what doesn't match, and a password may
have been put in place of a Secret's name."""

Uri = Annotated[str, Field(min_length=1, max_length=4096)]
"""A connection string. Its grammar is checked by the rules, never by a pattern: the API server
would print the value that doesn't match, and with it a password."""


def _pace(value: Any) -> Any:
    if value == "Auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,8}", value, re.ASCII):
        return int(value)
    raise refusal(
        "pace", "is neither Auto nor a rate", "write Auto, or documents a second from 1 up"
    )


Pace = Annotated[
    str | int,
    BeforeValidator(_pace),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""``"Auto"``, or documents a second."""

Quantity = Annotated[
    str | int,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A Kubernetes quantity such as ``500m`` or ``1Gi``; the API server checks it when pods are made."""

Free = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""An object of Kubernetes' own that is passed on as it stands."""
