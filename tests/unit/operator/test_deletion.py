"""When a resource may go, and when its finalizer has to stand."""

from dataclasses import replace
from typing import Any

import pytest

from thermocline_common.spec.models import DeletionPolicy
from thermocline_operator.plan.deletion import (
    Deletion,
    Guard,
    Hold,
    Outcome,
    Release,
    Why,
    decide,
    drained_by,
    forced,
    guard,
    local_tiers,
    short_services,
)
from thermocline_operator.plan.source import Resource, resource_of

AT_WORK = Deletion(
    name="shop",
    namespace="shops",
    uid="u-1",
    policy=DeletionPolicy.DRAIN,
    forced=False,
    proven=False,
    unsent=12,
    lost_tier=None,
    silent=0.0,
    stuck=5.0,
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"proven": True}, Why.DRAINED),
        ({"proven": True, "policy": DeletionPolicy.ABANDON}, Why.DRAINED),
        ({"proven": True, "forced": True, "lost_tier": "x"}, Why.DRAINED),
        ({"policy": DeletionPolicy.ABANDON}, Why.ABANDONED),
        ({"forced": True}, Why.FORCED),
        ({"lost_tier": "the tier spec.archive"}, Why.TIER_LOST),
    ],
    ids=str,
)
def test_what_releases(change: dict[str, Any], why: Why) -> None:
    found = decide(replace(AT_WORK, **change))
    assert isinstance(found, Release)
    assert found.why is why
    if why is not Why.DRAINED:
        assert "12 operations weren't replayed" in found.text


@pytest.mark.parametrize(
    ("change", "blocked", "alone"),
    [
        ({}, False, False),
        ({"silent": 25.0}, False, True),
        ({"terminating": True}, False, True),
        ({"stuck": 61.0}, True, False),
        ({"stuck": 1e9, "silent": 1e9}, True, True),
        ({"outcome": Outcome.REFUSED}, True, False),
        ({"outcome": Outcome.FAILED, "silent": 30.0}, False, True),
        ({"policy": DeletionPolicy.RETAIN}, False, False),
    ],
    ids=str,
)
def test_what_holds(change: dict[str, Any], blocked: bool, alone: bool) -> None:
    """Above all: no time, however long, ever releases."""
    found = decide(replace(AT_WORK, **change))
    assert isinstance(found, Hold)
    assert (found.blocked, found.alone) == (blocked, alone)
    command = "kubectl annotate tieredreplicaset shop -n shops thermocline.io/force-delete=u-1"
    assert (command in found.text) is blocked


def test_an_unknown_number_is_called_unknown() -> None:
    found = decide(replace(AT_WORK, forced=True, unsent=None))
    assert "isn't known" in found.text


@pytest.mark.parametrize(
    ("annotation", "yes"), [("u-1", True), ("u-2", False), ("true", False), (None, False)]
)
def test_only_the_own_uid_forces(annotation: str | None, yes: bool) -> None:
    annotations = {} if annotation is None else {"thermocline.io/force-delete": annotation}
    body = {"metadata": {"uid": "u-1", "annotations": annotations}}
    assert forced(body) is yes


@pytest.mark.parametrize(
    ("report", "yes"),
    [
        ({"feeder": {"drained": True, "settledGeneration": 7}}, True),
        ({"feeder": {"drained": True, "settledGeneration": 6}}, False),
        ({"feeder": {"drained": True, "settledGeneration": None}}, False),
        ({"feeder": {"drained": False, "settledGeneration": 7}}, False),
        ({"feeder": {"role": "standby"}}, False),
        ({}, False),
        (None, False),
    ],
    ids=str,
)
def test_only_the_present_manifest_proves(report: Any, yes: bool) -> None:
    assert drained_by(report, 7) is yes


def resource(
    archive: str = "archive-0.archive:27017", fast: str = "fast:27017", **spec: Any
) -> Resource:
    return resource_of(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "shop", "namespace": "shops", "uid": "u-1", "generation": 7},
            "spec": {
                "archive": {"uri": f"mongodb://{archive}/?replicaSet=a"},
                "fastTier": {"uri": f"mongodb://{fast}/?replicaSet=f"},
                **spec,
            },
        }
    )


POLICY = [{"namespace": "shop.orders", "keep": "All"}]
OWNER = {"feeder": {"role": "owner"}}
DRAINED = {"feeder": {"role": "owner", "drained": True, "settledGeneration": 7}}


@pytest.mark.parametrize(
    ("spec", "has", "report", "served", "wanted"),
    [
        # Nothing can be tiered before a feeder has reached both tiers.
        ({"collections": POLICY}, False, None, False, Guard.KEEP),
        ({"collections": POLICY}, False, {"feeder": {"role": "starting"}}, False, Guard.KEEP),
        ({"collections": POLICY}, False, OWNER, False, Guard.ADD),
        # Somebody took it away while services tier already.
        ({"collections": POLICY}, False, None, True, Guard.ADD),
        ({"collections": POLICY}, True, DRAINED, True, Guard.KEEP),
        ({"collections": POLICY, "deletionPolicy": "Abandon"}, False, OWNER, False, Guard.KEEP),
        ({"collections": POLICY, "mode": "Passthrough"}, True, None, False, Guard.KEEP),
        ({"collections": POLICY, "mode": "Passthrough"}, True, OWNER, False, Guard.KEEP),
        ({"collections": POLICY, "mode": "Passthrough"}, True, DRAINED, False, Guard.REMOVE),
        ({"collections": POLICY, "mode": "Passthrough"}, False, DRAINED, False, Guard.KEEP),
        ({}, True, DRAINED, False, Guard.REMOVE),
        ({}, True, OWNER, False, Guard.KEEP),
    ],
    ids=str,
)
def test_the_finalizer_stands_while_unsent_writes_may_exist(
    spec: dict[str, Any], has: bool, report: Any, served: bool, wanted: Guard
) -> None:
    assert guard(resource(**spec), has=has, report=report, served=served) is wanted


@pytest.mark.parametrize(
    ("archive", "fast", "services", "local"),
    [
        ("db.shops.svc:1", "db.other.svc:1", (), ["archive"]),
        ("db.shops.svc.cluster.local:1", "f.example.com:1", (), ["archive"]),
        ("a-0.a.shops.svc.cluster.local:1", "10.0.0.1:1", (), ["archive"]),
        ("a-0.archive:1", "fast:1", (), []),
        ("a-0.archive:1", "fast:1", ("archive", "fast"), ["archive", "fastTier"]),
        ("a-0.archive:1", "fast:1", ("a-0",), []),
        ("archive.shops:1", "fast.other:1", (), ["archive"]),
        ("a.shops.svc:1,b.elsewhere.svc:1", "fast:1", (), []),
        ("shops.example.com:1", "svc.shops.example:1", (), []),
    ],
)
def test_only_a_tier_that_surely_lives_in_the_namespace_is_local(
    archive: str, fast: str, services: tuple[str, ...], local: list[str]
) -> None:
    assert local_tiers(resource(archive, fast), frozenset(services)) == local


def test_names_that_may_be_services_here() -> None:
    found = short_services(resource("a-0.archive:1,10.0.0.1:1", "fast:1"))
    assert found == {"archive", "fast"}
