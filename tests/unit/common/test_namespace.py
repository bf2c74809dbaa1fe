import re

import pytest

from thermocline_common.namespace import (
    Namespace,
    NamespaceError,
    check_age_field,
    parse_tiered_namespace,
    split_namespace,
)
from thermocline_common.spec.fields import AGE_FIELD_PATTERN, NAMESPACE_PATTERN


@pytest.mark.parametrize(
    "text",
    ["shop.orders", "shop.orders.2026", "s.o", "shop.Ünïcode", "shop.with space", "shop.systems",
     "shop.mysystem.x", "a-b_c.d"],
)  # fmt: skip
def test_takes_what_mongodb_takes(text: str) -> None:
    assert str(parse_tiered_namespace(text)) == text
    assert re.search(NAMESPACE_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not of the form"),
        ("shop", "not of the form"),
        ("shop.", "not of the form"),
        (".orders", "not of the form"),
        ("shop. orders", "white space"),
        (" shop.orders", "white space"),
        ("shop.orders ", "white space"),
        ("sh op.orders", "' ' in the database's name"),
        ("sh/op.orders", "'/' in the database's name"),
        ("sh$op.orders", "'$' in the database's name"),
        ("admin.x", "database admin"),
        ("config.x", "database config"),
        ("local.x", "database local"),
        ("thermocline.x", "database thermocline"),
        ("Thermocline.x", "never tiered"),
        ("thermocline_aside.x", "never tiered"),
        ("shop.system.views", "MongoDB's own"),
        ("shop.system.buckets.weather", "MongoDB's own"),
        ("shop.a$b", "forbids"),
        ("shop..orders", "forbids"),
        ("shop.a\0b", "forbids"),
        ("d" * 64 + ".x", "more than 63 bytes"),
        ("shop." + "x" * 251, "longer than 255 bytes"),
        ("shop." + "ü" * 126, "longer than 255 bytes"),
    ],
)
def test_refuses_what_cannot_be_tiered(text: str, reason: str) -> None:
    with pytest.raises(NamespaceError) as caught:
        parse_tiered_namespace(text)
    assert reason in caught.value.reason
    assert caught.value.remedy


def test_splits_at_the_first_dot() -> None:
    assert split_namespace("shop.orders.2026") == Namespace("shop", "orders.2026")
    with pytest.raises(ValueError, match="no dot"):
        split_namespace("shop")


@pytest.mark.parametrize("text", ["createdAt", "meta.createdAt", "a b", "_id.at"])
def test_takes_paths_as_age_fields(text: str) -> None:
    assert check_age_field(text) == text
    assert re.search(AGE_FIELD_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("_id", "tells no age"),
        ("", "empty part"),
        ("a..b", "empty part"),
        (".a", "empty part"),
        ("a.", "empty part"),
        ("$a", "'$'"),
        ("a.$b", "'$'"),
        ("a\0", "NUL"),
        ("times.0.at", "array"),
        (" a", "white space"),
    ],
)
def test_refuses_what_is_no_single_field(text: str, reason: str) -> None:
    with pytest.raises(NamespaceError) as caught:
        check_age_field(text)
    assert reason in caught.value.reason
