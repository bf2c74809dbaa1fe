"""Where commands would go under the sample manifests."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from thermocline_cli.commands import CommandTextError, parse_command
from thermocline_cli.explain import TEXTS, assume, explain
from thermocline_common.manifest import load_manifest
from thermocline_common.spec.models import Mode, Routing, Spec
from thermocline_proxy.routing.routes import Reason

SAMPLES = Path(__file__).parents[3] / "docs" / "samples"
SPEC = load_manifest(SAMPLES / "shop.yaml").spec
NOW = dt.datetime(2026, 6, 30, tzinfo=dt.UTC)
POLICIES = [policy.namespace for policy in SPEC.collections]


def ask(command: dict[str, Any], spec: Spec = SPEC, **assumptions: Any) -> Any:
    parsed = parse_command(json.dumps(command), None, POLICIES)
    return explain(parsed, assume(spec, NOW, **assumptions))


def since(when: str) -> dict[str, Any]:
    return {"find": "orders", "filter": {"createdAt": {"$gte": {"$date": when}}}}


RECENT, OLD = since("2026-06-20T00:00:00Z"), since("2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("command", "tier", "reason"),
    [
        (RECENT, "fast tier", "covered"),
        (OLD, "archive", "below-floor"),
        ({"find": "orders", "filter": {"customer": 7}}, "archive", "no-bound"),
        ({"find": "orders", "filter": {"_id": 7}}, "fast tier", "point-id"),
        ({"find": "orders", "sort": {"createdAt": -1}, "limit": 10}, "fast tier", "newest-first"),
        ({"aggregate": "products", "pipeline": [], "cursor": {}}, "fast tier", "complete"),
        ({"find": "customers"}, "archive", "untiered"),
        ({"insert": "orders", "documents": [{"_id": 1}]}, "fast tier", "write"),
        ({"insert": "customers", "documents": [{"_id": 1}]}, "archive", "untiered"),
        ({"createIndexes": "orders", "indexes": []}, "both tiers", "ddl"),
        ({"createIndexes": "orders", "indexes": [{"key": {"a": 1}, "name": "a", "unique": True}]}, "archive", "ddl"),
        ({"dropIndexes": "orders", "index": "a"}, "both tiers", "ddl"),
        ({"collMod": "orders", "validationLevel": "off"}, "both tiers", "ddl"),
        ({"drop": "orders"}, "archive", "ddl"),
        ({"dropDatabase": 1}, "archive", "ddl"),
        ({"dropDatabase": 1, "$db": "other"}, "archive", "untiered"),
        ({"renameCollection": "shop.orders", "to": "shop.visits", "$db": "admin"}, "archive", "ddl"),
        ({"renameCollection": "shop.orders", "to": "shop.customers", "$db": "admin"}, "nobody", "ddl"),
        ({"convertToCapped": "orders", "size": 1}, "nobody", "ddl"),
        ({"compact": "orders"}, "archive", "ddl"),
        ({"drop": "customers"}, "archive", "untiered"),
        ({"ping": 1}, "proxy", "local"),
        ({"getMore": {"$numberLong": "5"}, "collection": "orders"}, "proxy", "cursor"),
        ({"endSessions": []}, "both tiers", "session"),
        ({"serverStatus": 1}, "archive", "admin"),
        ({"shutdown": 1}, "nobody", "refused"),
        ({"inventAnything": 1}, "nobody", "unknown-command"),
        ({"find": "removed", "$db": "thermocline"}, "nobody", "closed-database"),
        ({"aggregate": "customers", "pipeline": [{"$out": "orders"}], "cursor": {}}, "nobody", "writes-tiered"),
        ({"insert": "orders", "documents": [{}], "autocommit": False, "txnNumber": 1}, "fast tier", "transaction"),
        ({"commitTransaction": 1, "$db": "admin"}, "proxy", "transaction"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_where_commands_go(command: dict[str, Any], tier: str, reason: str) -> None:
    found = ask(command)
    assert (found.tier, found.reason) == (tier, reason)
    assert found.text
    assert (found.error is not None) == (tier == "nobody")


def test_refusals_name_the_error_that_clients_get() -> None:
    writes = {"aggregate": "customers", "pipeline": [{"$out": "orders"}], "cursor": {}}
    assert ask(writes).error == "IllegalOperation (20)"
    renamed = ask({"renameCollection": "shop.orders", "to": "b.orders", "$db": "admin"})
    assert "another database" in renamed.text
    assert renamed.error == "CommandNotSupported (115)"


def test_archive_reads_wait_only_where_strict() -> None:
    assert ask(OLD).barrier is True
    assert ask({"find": "visits"}).barrier is False  # archiveReads: Relaxed
    assert ask({"find": "customers"}).barrier is False


def test_assumptions_change_the_answer() -> None:
    assert ask(OLD, floor=dt.datetime(2025, 1, 1, tzinfo=dt.UTC)).tier == "fast tier"
    assert ask(RECENT, floor=dt.datetime(2026, 6, 29, tzinfo=dt.UTC)).reason == "below-floor"
    assert ask(RECENT, cold=True).reason == "nothing-covered"
    assert ask({"find": "products"}, cold=True).tier == "archive"


def test_the_manifest_changes_the_answer() -> None:
    passthrough = SPEC.model_copy(update={"mode": Mode.PASSTHROUGH})
    assert ask(RECENT, passthrough).reason == "untiered"
    assert ask({"dropDatabase": 1}, passthrough).reason == "untiered"
    assert ask({"drop": "orders"}, passthrough).reason == "untiered"
    proxy = SPEC.proxy.model_copy(update={"routing": Routing.ARCHIVE_ONLY})
    archive_only = SPEC.model_copy(update={"proxy": proxy})
    assert ask(RECENT, archive_only).reason == "archive-only"


def test_every_reason_is_told_to_people() -> None:
    assert set(TEXTS) == set(Reason)


@pytest.mark.parametrize(
    ("text", "database", "policies", "message"),
    [
        ("{find: 'orders'}", None, POLICIES, "extended JSON"),
        ("[]", None, POLICIES, "is an object"),
        ("{}", None, POLICIES, "is an object"),
        ('{"find": "x"}', None, ["a.x", "b.x"], "--database"),
        ('{"find": "x"}', None, [], "--database"),
        ('{"find": "x", "$db": 5}', None, POLICIES, "name of a database"),
        ('{"find": "x", "filter": {"a": 1e400, "b": 99999999999999999999999}}', "d", [], "sent to MongoDB"),
    ],
)  # fmt: skip
def test_texts_that_are_no_command(
    text: str, database: str | None, policies: list[str], message: str
) -> None:
    with pytest.raises(CommandTextError, match=message):
        parse_command(text, database, policies)


def test_the_database_comes_from_option_command_or_policies() -> None:
    assert parse_command('{"find": "x", "$db": "b"}', "a", POLICIES).database == "a"
    assert parse_command('{"find": "x", "$db": "b"}', None, POLICIES).database == "b"
    assert parse_command('{"find": "x"}', None, POLICIES).namespace == "shop.x"
