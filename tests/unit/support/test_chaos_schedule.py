"""The same seed makes the same plan; a plan never takes a tier's majority and ends before the calm."""

import itertools

import pytest

from support.chaos.run import SAMPLE
from support.chaos.schedule import CALM, Fault, Scene, plan, resources

SERVICES = ("proxy-1", "proxy-2", "proxy-3", "feeder", "evictor", "warmer")
SCENE = Scene(SERVICES)


def test_a_seed_repeats_its_plan_and_another_one_has_another() -> None:
    assert plan(5, 120, SCENE) == plan(5, 120, SCENE)
    assert plan(5, 120, SCENE) != plan(6, 120, SCENE)


@pytest.mark.parametrize("seed", range(40))
def test_what_one_fault_holds_no_other_one_touches(seed: int) -> None:
    faults = plan(seed, 120, SCENE)
    assert len(faults) >= 12
    for one, other in itertools.combinations(faults, 2):
        if resources(one) & resources(other):
            assert other.at >= one.at + one.seconds, f"{one}\n{other}"
    assert all(f.at + f.seconds <= 120 - CALM for f in faults)


def test_forty_seeds_break_everything() -> None:
    faults = [f for seed in range(40) for f in plan(seed, 120, SCENE)]
    assert {f.fault for f in faults} == set(Fault)
    assert {f.target for f in faults if f.fault is Fault.KILL_SERVICE} == set(SERVICES)
    for kind in (Fault.KILL_MEMBER, Fault.FREEZE_MEMBER):
        targets = {f.target for f in faults if f.fault is kind}
        assert {"fast primary", "archive primary", "fast secondary"} <= targets, kind


def test_a_scene_limits_the_plan() -> None:
    scene = Scene(SERVICES, members=False, full_disk=False, freeze=(2.0, 3.0))
    faults = [f for seed in range(20) for f in plan(seed, 120, scene)]
    kinds = {f.fault for f in faults}
    assert not kinds & {Fault.KILL_MEMBER, Fault.FULL_DISK, Fault.STEP_DOWN}
    assert all(2 <= f.seconds <= 3 for f in faults if f.fault is Fault.FREEZE_SERVICE)


def test_every_service_is_disturbed_before_one_is_again() -> None:
    scene = Scene(SERVICES, kinds=frozenset({Fault.KILL_SERVICE}))
    targets = [f.target for f in plan(1, 120, scene)]
    assert set(targets[: len(SERVICES)]) == set(SERVICES)


def test_the_sample_breaks_every_service_and_runs_two_feeders_and_two_evictors() -> None:
    faults = plan(SAMPLE.seed, SAMPLE.seconds, SAMPLE.scene(full_disk=False), SAMPLE.calm)
    broken = {f.target for f in faults if f.fault in (Fault.KILL_SERVICE, Fault.FREEZE_SERVICE)}
    killed = {f.target.partition("-")[0] for f in faults if f.fault is Fault.KILL_SERVICE}
    assert broken == set(SERVICES)
    assert killed == {"proxy", "feeder", "evictor", "warmer"}
    assert {f.target for f in faults if f.fault is Fault.SECOND_COPY} >= {"feeder", "evictor"}
    assert {f.fault for f in faults} == SAMPLE.kinds
    assert {"fast primary", "archive primary"} & {f.target for f in faults}


def test_without_kinds_there_are_no_faults() -> None:
    assert plan(1, 50, Scene(SERVICES, kinds=frozenset())) == ()
