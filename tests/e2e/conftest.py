"""End-to-end tests run by ``make e2e`` alone: they need root, minutes, and a machine to build Kubernetes on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e.application import Application
from support.e2e.cluster import Cluster, obstacles, running_cluster
from support.e2e.tiered import Resource
from support.e2e.tiers import Tiers, start_tiers
from support.helm import ROOT

WANTED = os.environ.get("THERMOCLINE_E2E", "")
if not WANTED:
    collect_ignore_glob = ["test_*.py"]

DATA, SHOP, OPERATOR = "data", "shop", "thermocline"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need the cluster; the longest steps are left out of the sample."""
    for item in items:
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(900))
        if WANTED == "sample" and item.get_closest_marker("whole"):
            item.add_marker(pytest.mark.skip(reason="not in the sample: make e2e"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster with the images."""
    lacking = obstacles()
    if lacking:
        pytest.skip(f"no cluster can run here: {'; '.join(lacking)}")
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tiers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Tiers:
    """Both replica sets, in a namespace of their own."""
    kept = "THERMOCLINE_E2E_KEEP" in os.environ
    folder = ROOT / "build" / "e2e-pki" if kept else Path(tmp_path_factory.mktemp("pki"))
    return start_tiers(cluster, DATA, folder)


@pytest.fixture(scope="session")
def shop(cluster: Cluster) -> Resource:
    """``trs/shop``; the steps make it."""
    return Resource(cluster, SHOP)


@pytest.fixture(scope="session")
def application(cluster: Cluster) -> Application:
    """The application's pod; the steps make it."""
    return Application(cluster, SHOP)
