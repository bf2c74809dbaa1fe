"""The CRD on a real API server: what a person who applies a bad manifest is told, beside what ``validate`` tells."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.e2e.cluster import Cluster
from support.helm import ROOT
from support.manifests import ADMISSION, CASES, patched
from thermocline_common.spec.manifest import find_problems

CRD = ROOT / "crds" / "thermocline.io_tieredreplicasets.yaml"
NAME = "tieredreplicasets.thermocline.io"


@pytest.fixture(scope="module", autouse=True)
def served(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("create", "namespace", "shop")
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=30s")
    yield
    cluster.kubectl("delete", "crd", NAME)
    cluster.kubectl("delete", "namespace", "shop")


def told(cluster: Cluster, resource: dict[str, Any]) -> str:
    """What kubectl says to it; empty: the API server would take it."""
    done = cluster.attempt(
        "-n", "shop", "create", "--dry-run=server", "-f", "-", text=json.dumps(resource)
    )
    return done.stderr if done.returncode != 0 else ""


def test_is_structural_and_was_taken_without_a_warning(cluster: Cluster) -> None:
    crd = json.loads(cluster.kubectl("get", "crd", NAME, "-o", "json"))
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert conditions["NamesAccepted"] == conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    said = cluster.attempt("apply", "--server-side", "-f", str(CRD))
    assert "Warning" not in said.stderr


@pytest.mark.parametrize("case", CASES["good"], ids=lambda case: case["name"])
def test_takes_what_the_validator_takes(cluster: Cluster, case: dict[str, Any]) -> None:
    said = told(cluster, patched(case["patch"]))
    if case["name"] in ADMISSION:  # unknown fields of a status
        assert all(text in said for text in ADMISSION[case["name"]] or ())
    else:
        assert not said


@pytest.mark.parametrize("case", CASES["bad"], ids=lambda case: case["name"])
def test_what_a_person_is_told(cluster: Cluster, case: dict[str, Any]) -> None:
    resource = patched(case["patch"])
    said = told(cluster, resource)
    assert "geheim" not in said.lower(), "a secret is shown"
    assert find_problems(resource), "whatever the API server refuses, the validator refuses"
    wanted = ADMISSION[case["name"]]
    if wanted is None:
        assert not said, "only the validator can see it: ConfigValid=False"
    else:
        for text in wanted:
            assert text in said


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "samples").glob("*.yaml")), ids=lambda p: p.name
)
def test_samples_are_taken(cluster: Cluster, path: Path) -> None:
    resource = yaml.safe_load(path.read_text())
    resource["metadata"]["namespace"] = "shop"
    assert not told(cluster, resource)


class TestWhatKubectlCanDo:
    """Short name, category, defaults, scale: on a resource that no operator looks after."""

    @pytest.fixture(autouse=True)
    def _resource(self, cluster: Cluster) -> Iterator[None]:
        resource = patched([["metadata.name", "looked-at"]])
        cluster.kubectl("-n", "shop", "apply", "-f", "-", text=json.dumps(resource))
        yield
        cluster.kubectl("-n", "shop", "delete", "trs", "looked-at")

    def spec(self, cluster: Cluster) -> dict[str, Any]:
        found = cluster.get("trs", "looked-at", "shop")
        assert found is not None
        return dict(found["spec"])

    def test_defaults_are_the_schema_s(self, cluster: Cluster) -> None:
        spec = self.spec(cluster)
        assert spec["mode"] == "Active"
        assert spec["proxy"]["replicas"] == 2
        assert spec["evictor"]["mode"] == "DryRun"
        assert spec["collections"][0]["archiveReads"] == "Strict"

    def test_columns(self, cluster: Cluster) -> None:
        head, line = cluster.kubectl("-n", "shop", "get", "thermocline").splitlines()
        assert head.split() == ["NAME", "PHASE", "READY", "WARM", "LAG", "COVERAGE", "AGE"]
        assert line.split()[0] == "looked-at"
        wide = cluster.kubectl("-n", "shop", "get", "trs", "-o", "wide").splitlines()[0]
        assert wide.split()[-3:] == ["MODE", "REASON", "PROXIES"]

    def test_scale_survives_a_manifest_without_replicas(self, cluster: Cluster) -> None:
        cluster.kubectl("-n", "shop", "scale", "trs", "looked-at", "--replicas=5")
        resource = patched([["metadata.name", "looked-at"]])
        cluster.kubectl("-n", "shop", "apply", "-f", "-", text=json.dumps(resource))
        assert self.spec(cluster)["proxy"]["replicas"] == 5

    def test_explain(self, cluster: Cluster) -> None:
        said = cluster.kubectl("explain", "trs.spec.evictor.mode")
        assert "DryRun" in said
