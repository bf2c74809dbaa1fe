"""Turns against an API server in memory: what is created, kept, repaired, held back and let go."""

import copy
import itertools
import random

import pytest

from support.operator_world import KEY, NAMESPACE, SPEC, TRS, NoDrain, World, without_servers
from thermocline_operator.api import ApiError
from thermocline_operator.plan.deletion import Outcome
from thermocline_operator.plan.labels import FINALIZER
from thermocline_operator.plan.settings import PodSettings


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    without_servers(monkeypatch)


async def test_everything_is_created_and_then_left_alone(world: World) -> None:
    await world.bring_up()
    assert world.server.names("deployments") == [
        "shop-evictor", "shop-feeder", "shop-proxy", "shop-warmer",
    ]  # fmt: skip
    assert world.condition("Ready")["status"] == "True", world.resource["status"]
    assert world.resource["status"]["phase"] == "Active"
    world.server.writes.clear()
    await world.turns(5)
    await world.turn(news=False)
    assert world.server.writes == []


async def test_nothing_is_tiered_before_the_finalizer_stands(world: World) -> None:
    world.create()
    await world.turn()
    assert FINALIZER not in world.resource["metadata"].get("finalizers", [])
    assert world.manifest.spec.mode == "Passthrough"
    seen: list[str] = []

    def watch(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(("/shop", "/shop-config")):
            seen.append(path.rpartition("/")[2])

    world.server.fault = watch
    world.run_pods()
    await world.turns()
    assert world.resource["metadata"]["finalizers"] == [FINALIZER]
    assert world.manifest.spec.mode == "Active"
    assert seen == ["shop", "shop-config"]


async def test_a_resource_that_never_worked_is_deleted_at_once(world: World) -> None:
    world.create()
    await world.turns()
    world.server.delete(TRS, *KEY)
    assert world.gone


async def test_drift_is_repaired_and_told(world: World) -> None:
    await world.bring_up()
    world.server.edit("deployments", NAMESPACE, "shop-feeder", {"spec": {"replicas": 0}})
    world.server.edit("services", NAMESPACE, "shop-proxy", {"metadata": {"labels": {"mine": "1"}}})
    world.server.delete("configmaps", NAMESPACE, "shop-config")
    await world.turn()
    assert world.server.objects["deployments", NAMESPACE, "shop-feeder"]["spec"]["replicas"] == 1
    service = world.server.objects["services", NAMESPACE, "shop-proxy"]
    assert service["metadata"]["labels"]["mine"] == "1"
    assert world.manifest.spec.mode == "Active"
    assert world.events().count("DriftRepaired") == 2


async def test_a_foreign_object_is_never_overwritten(world: World) -> None:
    theirs = {"metadata": {"name": "shop-proxy", "namespace": NAMESPACE}, "spec": {"x": 1}}
    world.server.put("services", copy.deepcopy(theirs))
    await world.bring_up()
    assert world.server.objects["services", NAMESPACE, "shop-proxy"]["spec"] == {"x": 1}
    assert world.condition("Ready")["reason"] == "NameConflict"
    assert "NameConflict" in world.events()
    assert "shop-feeder" in world.server.names("deployments")
    del world.server.objects["services", NAMESPACE, "shop-proxy"]
    await world.turns()
    assert world.condition("Ready")["status"] == "True"


async def test_pods_never_follow_a_foreign_manifest(world: World) -> None:
    theirs = {"metadata": {"name": "shop-config", "namespace": NAMESPACE}, "data": {"x": "1"}}
    world.server.put("configmaps", theirs)
    world.create()
    await world.turns()
    assert world.server.names("deployments") == []
    assert world.resource["status"]["phase"] == "Failed"


async def test_an_invalid_spec_leaves_services_as_they_are(world: World) -> None:
    await world.bring_up()
    bad = {"spec": {"collections": [{"namespace": "shop.products", "ageField": "at"}]}}
    world.server.edit(TRS, *KEY, bad)
    await world.turns()
    assert world.manifest.spec.collections[0].keep is not None
    assert world.condition("ConfigValid")["status"] == "False"
    assert "spec.collections[0].maxAge" in world.condition("ConfigValid")["message"]
    assert world.resource["status"]["observedGeneration"] == 2
    assert "SpecRefused" in world.events()


async def test_a_refused_object_holds_up_no_other(world: World) -> None:
    def refuse(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/poddisruptionbudgets/shop-proxy"):
            raise ApiError(422, "Invalid", "spec.x: no")

    world.server.fault = refuse
    await world.bring_up()
    assert len(world.server.names("deployments")) == 4
    assert world.condition("Stalled")["reason"] == "ApiRefused"
    assert "spec.x: no" in world.condition("Stalled")["message"]


async def test_what_stands_in_the_way_of_ours_goes_first(world: World) -> None:
    """As another's Service port of the same name does, which server-side apply leaves there."""
    await world.bring_up()
    theirs = [{"name": "mongodb", "port": 9999}]
    world.server.edit("services", NAMESPACE, "shop-proxy", {"spec": {"ports": theirs}})

    def refuse(method: str, path: str) -> None:
        service = world.server.objects["services", NAMESPACE, "shop-proxy"]
        applied = path.endswith("/services/shop-proxy") and method == "PATCH"
        if applied and service["spec"]["ports"] == theirs and refusals.pop():
            raise ApiError(422, "Invalid", "duplicate name")

    refusals = [False, True]
    world.server.fault = refuse
    await world.turn()
    service = world.server.objects["services", NAMESPACE, "shop-proxy"]
    assert service["spec"]["ports"][0]["port"] == 27017
    assert world.condition("Stalled")["status"] == "False"


async def test_a_pause_holds_everything_but_the_manifest(world: World) -> None:
    await world.bring_up()
    world.server.edit(TRS, *KEY, {"spec": {"paused": True, "proxy": {"replicas": 5}}})
    world.server.edit("deployments", NAMESPACE, "shop-feeder", {"spec": {"replicas": 0}})
    await world.turns()
    assert world.manifest.spec.paused
    assert world.server.objects["deployments", NAMESPACE, "shop-proxy"]["spec"]["replicas"] == 2
    assert world.server.objects["deployments", NAMESPACE, "shop-feeder"]["spec"]["replicas"] == 0
    assert world.resource["status"]["phase"] == "Paused"
    assert world.resource["status"]["observedGeneration"] == 2


async def test_leaving_the_tiers_takes_the_finalizer_away(world: World) -> None:
    await world.bring_up()
    world.server.edit(TRS, *KEY, {"spec": {"mode": "Passthrough"}})
    await world.turns()
    assert world.resource["metadata"]["finalizers"] == [FINALIZER]
    world.run_pods()
    await world.turns()
    assert world.resource["metadata"].get("finalizers") == []
    assert world.resource["status"]["phase"] == "Passthrough"


async def test_deletion_waits_for_the_feeders_word(world: World) -> None:
    await world.bring_up()
    world.server.delete(TRS, *KEY)
    await world.turns()
    assert not world.gone
    assert world.manifest.spec.mode == "Passthrough"
    assert world.manifest.metadata.generation == 2
    assert world.resource["status"]["phase"] == "Draining"
    # An older word proves nothing.
    world.run_pods(settledGeneration=1)
    await world.turns()
    assert not world.gone
    world.run_pods()
    await world.turn()
    assert world.gone
    assert "Drained" in world.events()


async def test_a_deletion_without_pods_drains_by_itself(world: World) -> None:
    await world.bring_up()
    world.server.delete(TRS, *KEY)
    for kind, place, name in list(world.server.objects):
        if kind in ("deployments", "pods", "configmaps"):
            del world.server.objects[kind, place, name]
    await world.turn()
    memory = world.operator.memories[KEY]
    assert memory.feeder_at is not None
    memory.feeder_at -= 30
    await world.turn()
    assert memory.drain is not None
    assert "mode: Passthrough" in memory.drain.manifest
    assert world.server.names("deployments") == []
    NoDrain.ends = Outcome.DRAINED
    await world.turn()
    assert world.gone


async def test_orphaning_drains_too_and_leaves_the_objects_without_owner(world: World) -> None:
    await world.bring_up()
    for path, body in world.server.objects.items():
        if path[0] != TRS:
            body["metadata"].pop("ownerReferences", None)
    world.server.delete(TRS, *KEY)
    await world.turns()
    assert world.manifest.spec.mode == "Passthrough"
    world.run_pods()
    await world.turn()
    assert world.gone
    config = world.server.objects["configmaps", NAMESPACE, "shop-config"]
    assert "ownerReferences" not in config["metadata"]
    assert len(world.server.names("deployments")) == 4


async def test_a_namespace_that_ends_takes_the_rights_along_and_is_drained_all_the_same(
    world: World,
) -> None:
    credentials = {"archive": {**SPEC["archive"], "credentialsSecretRef": {"name": "user"}}}
    secret = {"metadata": {"name": "user", "namespace": NAMESPACE}}
    world.server.put("secrets", {**secret, "data": {"username": "dQ==", "password": "cA=="}})
    await world.bring_up(**credentials)
    world.server.edit(
        "namespaces", "", NAMESPACE, {"metadata": {"deletionTimestamp": "2026-06-01T00:00:00Z"}}
    )
    allowed = ("tieredreplicasets", "namespaces", "pods")

    def refuse(method: str, path: str) -> None:
        plural = path.split("/namespaces/shops/")[-1].split("/")[0]
        if plural not in allowed and not path.endswith("/namespaces/shops"):
            raise ApiError(403, "Forbidden", path)

    world.server.fault = refuse
    world.server.delete(TRS, *KEY)
    for kind, place, name in list(world.server.objects):
        if kind in ("pods", "secrets", "configmaps", "deployments"):
            del world.server.objects[kind, place, name]
    await world.turns()
    drain = world.operator.memories[KEY].drain
    assert drain is not None
    assert drain._credentials == {"archive/username": b"u", "archive/password": b"p"}
    assert not world.gone
    NoDrain.ends = Outcome.DRAINED
    await world.turn()
    assert world.gone


async def test_what_the_archive_refuses_blocks_and_says_how_to_force(world: World) -> None:
    await world.bring_up()
    world.server.delete(TRS, *KEY)
    del world.server.objects["pods", NAMESPACE, "shop-feeder-x"]
    await world.turn()
    memory = world.operator.memories[KEY]
    assert memory.feeder_at is not None
    memory.feeder_at -= 30
    await world.turn()
    NoDrain.ends = Outcome.REFUSED
    await world.turns()
    assert not world.gone
    (blocked,) = [b for b in world.resource["status"]["blockedOn"] if b["kind"] == "Drain"]
    assert "thermocline.io/force-delete=u-1" in blocked["reason"]
    annotations = {"metadata": {"annotations": {"thermocline.io/force-delete": "another"}}}
    world.server.edit(TRS, *KEY, annotations)
    await world.turns()
    assert not world.gone
    annotations["metadata"]["annotations"]["thermocline.io/force-delete"] = "u-1"
    world.server.edit(TRS, *KEY, annotations)
    await world.turn()
    assert world.gone
    assert "ReleasedUnsent" in world.events()


async def test_a_drain_of_our_own_counts_only_if_no_feeder_begins_anew(world: World) -> None:
    """A feeder that still follows the old manifest would tier everything again."""
    await world.bring_up()
    world.server.delete(TRS, *KEY)
    await world.turn()
    memory = world.operator.memories[KEY]
    world.run_pods(drained=False)
    world.reporter.answers["10.0.0.2"]["appliedGeneration"] = 1
    memory.drain = NoDrain("", {})
    NoDrain.ends = Outcome.DRAINED
    await world.turns()
    assert not world.gone
    world.reporter.answers["10.0.0.2"]["appliedGeneration"] = 2
    await world.turns()
    assert world.gone


async def test_an_operator_that_starts_anew_drains_by_the_last_good_manifest(
    world: World,
) -> None:
    await world.bring_up()
    world.server.edit(TRS, *KEY, {"spec": {"collections": [{"namespace": "nonsense"}]}})
    await world.turns()
    world.server.delete(TRS, *KEY)
    world.start()
    await world.turns()
    assert not world.gone
    assert world.manifest.spec.mode == "Passthrough"
    world.run_pods()
    await world.turn()
    assert world.gone


class Killed(Exception):
    """The operator's process ends here."""


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_operator_killed_at_every_step_comes_to_the_same_end(moment: str) -> None:
    for step in itertools.count(1):
        if await killed_at(step, moment) < step:
            break
    assert step > 12


async def killed_at(step: int, moment: str) -> int:
    """A resource comes up though the operator is killed at its write number ``step``; how many there were."""
    world = World()
    count = 0

    def kill(method: str, path: str) -> None:
        nonlocal count
        count += method != "GET"
        if method != "GET" and count == step:
            raise Killed(path)

    if moment == "before":
        world.server.fault = kill
    else:
        world.server.late = kill
    world.create()
    for _ in range(12):
        try:
            await world.turn()
        except Killed:
            world.start()
        if world.complete:
            world.run_pods()
    assert world.resource["metadata"]["finalizers"] == [FINALIZER], step
    assert world.condition("Ready")["status"] == "True", step
    assert world.manifest.spec.mode == "Active"
    return count


@pytest.mark.parametrize("status", [0, 409, 429, 500])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_errors_of_the_api_server_end_a_turn_and_nothing_else(
    status: int, moment: str
) -> None:
    world = World()
    chance = random.Random(status)

    def sometimes(method: str, path: str) -> None:
        if chance.random() < 0.04:
            raise ApiError(status, "Fault", path)

    if moment == "before":
        world.server.fault = sometimes
    else:
        world.server.late = sometimes
    world.create()
    failures = 0
    for _ in range(40):
        try:
            await world.turn()
        except ApiError:
            failures += 1
        if world.complete:
            world.run_pods()
    assert failures
    world.server.fault = world.server.late = lambda method, path: None
    await world.turns()
    world.run_pods()
    await world.turns()
    assert world.condition("Ready")["status"] == "True"
    assert world.resource["metadata"]["finalizers"] == [FINALIZER]


async def test_a_drain_that_is_told_twice_is_written_once(world: World) -> None:
    await world.bring_up()
    world.server.delete(TRS, *KEY)
    await world.turns()
    world.server.writes.clear()
    await world.turns(5)
    assert world.server.writes == []


async def test_an_upgrade_rolls_nothing_that_waits_for_approval(world: World) -> None:
    await world.bring_up(rolloutPolicy="OnApproval")
    before = copy.deepcopy(world.server.objects["deployments", NAMESPACE, "shop-proxy"]["spec"])
    world.operator._settings = PodSettings("services:2")
    await world.turns()
    assert world.server.objects["deployments", NAMESPACE, "shop-proxy"]["spec"] == before
    pending = world.resource["status"]["pendingRollout"]
    annotations = {"thermocline.io/approved-rollout": pending.partition(":")[0]}
    world.server.edit(TRS, *KEY, {"metadata": {"annotations": annotations}})
    await world.turns()
    spec = world.server.objects["deployments", NAMESPACE, "shop-proxy"]["spec"]
    assert spec["template"]["spec"]["containers"][0]["image"] == "services:2"
    assert "pendingRollout" not in world.resource["status"]


async def test_a_secret_that_is_waited_for_is_looked_at_often(world: World) -> None:
    """Secrets can't be watched: the right to list them would show all of a namespace."""
    world.create(archive={**SPEC["archive"], "credentialsSecretRef": {"name": "user"}})
    await world.turns()
    assert world.condition("CredentialsValid")["reason"] == "SecretMissing"
    body = {
        "metadata": {"name": "user", "namespace": NAMESPACE},
        "data": {"username": "YQ==", "password": "Yg=="},
    }
    world.server.put("secrets", body)
    memory = world.operator.memories[KEY]
    assert memory.full_at is not None
    memory.full_at -= 11
    await world.turn(news=False)
    assert world.condition("CredentialsValid")["reason"] == "NotHeard"
