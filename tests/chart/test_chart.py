"""The Helm chart: what it makes of its values, and that it agrees with the operator and the CRD."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import helm
from thermocline_common import __version__
from thermocline_operator.options import Options, parse_options
from thermocline_operator.rights import RIGHTS, WITHOUT_CALL, Place, Right

ALERTS = yaml.safe_load((helm.CHART / "files" / "alerts.yaml").read_text())
EVERYTHING = (
    "--set", "networkPolicy.enabled=true", "--set", "serviceMonitor.enabled=true",
    "--set", "prometheusRule.enabled=true", "--set", "networkPolicy.tierCIDRs={10.1.0.0/16}",
    "--set", "imagePullSecrets[0].name=registry", "--set", "watchNamespaces={shop,crm}",
    "--set", "priorityClassName=high", "--set", "nodeSelector.disk=ssd",
    "--set", "podLabels.team=data", "--set", "podAnnotations.note=x",
    "--set", "serviceAccount.annotations.note=x", "--set", "networkPolicy.apiServerCIDRs={10.2.0.1/32}",
)  # fmt: skip


def of_kind(objects: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [thing for thing in objects if thing["kind"] == kind]


def one(objects: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    (thing,) = of_kind(objects, kind)
    return thing


def granted(rules: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def stated(*places: Place) -> set[tuple[str, str, str]]:
    rights: tuple[Right, ...] = (*RIGHTS, *WITHOUT_CALL)
    return {
        (right.group, right.resource, verb)
        for right in rights
        if right.place in places
        for verb in right.verbs
    }


@pytest.mark.parametrize("words", [(), EVERYTHING, ("--set", "clusterWide=true")])
def test_lint(words: tuple[str, ...]) -> None:
    helm.helm("lint", "--strict", helm.CHART, *words)


def test_the_chart_has_the_code_s_version() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


class TestRights:
    """The operator's own table is the measure: nothing missing, and nothing more."""

    def test_a_role_in_each_watched_namespace(self) -> None:
        objects = helm.template("--set", "watchNamespaces={shop,crm}", namespace="ops")
        roles = {
            (role["metadata"]["namespace"], role["metadata"]["name"]): granted(role["rules"])
            for role in of_kind(objects, "Role")
        }
        wanted = stated(Place.WATCHED)
        assert roles == {
            ("shop", "ops-thermocline-operator"): wanted,
            ("crm", "ops-thermocline-operator"): wanted,
            ("ops", "thermocline-operator-lease"): stated(Place.LEASE),
        }
        bound = {
            (binding["metadata"]["namespace"], binding["roleRef"]["name"])
            for binding in of_kind(objects, "RoleBinding")
        }
        assert bound == roles.keys()
        binding = one(objects, "ClusterRoleBinding")
        (ending,) = [
            role for role in of_kind(objects, "ClusterRole")
            if role["metadata"]["name"] == binding["roleRef"]["name"]
        ]  # fmt: skip
        assert granted(ending["rules"]) == stated(Place.ENDING)

    def test_its_own_namespace_where_none_is_named(self) -> None:
        objects = helm.template(namespace="ops")
        assert {role["metadata"]["namespace"] for role in of_kind(objects, "Role")} == {"ops"}

    def test_a_cluster_role_on_request(self) -> None:
        objects = helm.template("--set", "clusterWide=true", "--set", "rbac.aggregateRoles=false")
        role, binding = one(objects, "ClusterRole"), one(objects, "ClusterRoleBinding")
        assert granted(role["rules"]) == stated(Place.WATCHED)
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert granted(one(objects, "Role")["rules"]) == stated(Place.LEASE)

    def test_every_subject_is_the_operator_s_account(self) -> None:
        objects = helm.template("--set", "watchNamespaces={shop,crm}", namespace="ops")
        account = one(objects, "ServiceAccount")["metadata"]
        for binding in (*of_kind(objects, "RoleBinding"), one(objects, "ClusterRoleBinding")):
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": account["name"], "namespace": "ops"}
            ]
        pod = one(objects, "Deployment")["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == account["name"]

    def test_the_page_on_security_lists_them(self) -> None:
        rows = re.findall(
            r"^\| (\S+) \| `(\S+)` \| ([a-z ]+) \|",
            (helm.ROOT / "docs/security.md").read_text(),
            re.M,
        )
        listed = {
            ("" if group == "core" else group, resource, verb)
            for group, resource, verbs in rows
            for verb in verbs.split()
        }
        assert listed == stated(*Place)

    def test_none_where_someone_else_grants_them(self) -> None:
        objects = helm.template("--set", "rbac.create=false")
        assert not [thing for thing in objects if "Role" in thing["kind"]]


class TestCrd:
    """One definition, in three places that can't differ."""

    def test_is_kept_and_is_the_one_of_crds(self) -> None:
        found = one(helm.template(), "CustomResourceDefinition")
        assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        del found["metadata"]["labels"]
        (path,) = (helm.ROOT / "crds").iterdir()
        assert found == yaml.safe_load(path.read_text())

    def test_is_left_out_on_request(self) -> None:
        objects = helm.template("--set", "crds.create=false")
        assert not of_kind(objects, "CustomResourceDefinition")


def test_the_operator_takes_its_arguments() -> None:
    pod = one(helm.template(*EVERYTHING, namespace="ops"), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["thermocline-operator"]
    assert parse_options(container["args"], {}) == Options(
        service_image=f"thermocline-service:{__version__}",
        lease_namespace="ops",
        lease_name="thermocline-operator",
        watch_namespaces=("crm", "shop"),
        image_pull_secrets=("registry",),
        network_policies=True,
        egress_cidrs=("10.1.0.0/16",),
    )
    everything = one(helm.template("--set", "clusterWide=true"), "Deployment")["spec"]["template"]
    assert parse_options(everything["spec"]["containers"][0]["args"], {}).watch_namespaces == ()


class TestPods:
    """Restricted pod security, on every pod of the chart."""

    @pytest.fixture(params=["operator", "test"])
    def pod(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        objects = helm.template(*EVERYTHING)
        if request.param == "operator":
            return dict(one(objects, "Deployment")["spec"]["template"]["spec"])
        return dict(one(objects, "Pod")["spec"])

    def test_is_restricted(self, pod: dict[str, Any]) -> None:
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


class TestValues:
    """What a person may set, and what they are told where it can't be."""

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ("image.tga=1", "'tga' not allowed"),
            ("replicas=-1", "/replicas"),
            ("watchNamespaces={Shop}", "/watchNamespaces/0"),
            ("logLevel=loud", "/logLevel"),
            ("image.digest=sha256:12", "/image/digest"),
            ("networkPolicy.tierCIDRs={archive.example}", "/networkPolicy/tierCIDRs/0"),
            ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
            ("clusterwide=true", "'clusterwide' not allowed"),
        ],
    )
    def test_a_bad_one_is_refused_by_its_name(self, setting: str, said: str) -> None:
        done = helm.helm("template", "t", helm.CHART, "--set", setting, check=False)
        assert done.returncode != 0
        assert said in done.stderr

    def test_everything_or_some_namespaces_but_not_both(self) -> None:
        words = ("--set", "clusterWide=true", "--set", "watchNamespaces={shop}")
        done = helm.helm("template", "t", helm.CHART, *words, check=False)
        assert "/watchNamespaces" in done.stderr

    def test_an_old_kubernetes_is_refused(self) -> None:
        done = helm.helm("template", "t", helm.CHART, "--kube-version", "1.29.3", check=False)
        assert "requires kubeVersion: >=1.30" in done.stderr

    def test_every_value_has_a_place_in_the_schema(self) -> None:
        schema = (helm.CHART / "values.schema.json").read_text()
        values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
        for name, value in values.items():
            assert f'"{name}"' in schema
            for inner in value if isinstance(value, dict) else ():
                assert f'"{inner}"' in schema or name == "resources"

    @pytest.mark.parametrize(
        ("words", "image"),
        [
            ((), f"thermocline-operator:{__version__}"),
            (("--set", "image.tag=v7"), "thermocline-operator:v7"),
            (
                ("--set", "image.tag=v7", "--set", f"image.digest=sha256:{'a' * 64}"),
                f"thermocline-operator@sha256:{'a' * 64}",
            ),
        ],
    )
    def test_images(self, words: tuple[str, ...], image: str) -> None:
        pod = one(helm.template(*words), "Deployment")["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == image

    @pytest.mark.parametrize(
        ("release", "name"),
        [("thermocline", "thermocline-operator"), ("prod", "prod-thermocline-operator")],
    )
    def test_names(self, release: str, name: str) -> None:
        assert one(helm.template(release=release), "Deployment")["metadata"]["name"] == name


class TestAlerts:
    """Over metrics that there are, each with a page to turn to."""

    def test_the_rule_holds_the_file(self) -> None:
        objects = helm.template(*EVERYTHING)
        assert one(objects, "PrometheusRule")["spec"] == ALERTS

    def test_every_alert_has_a_section_in_the_runbooks(self) -> None:
        sections = set(
            re.findall(r"^## (\w+)$", (helm.ROOT / "docs/runbooks.md").read_text(), re.M)
        )
        alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
        assert sections == alerts
        for group in ALERTS["groups"]:
            for rule in group["rules"]:
                anchor = f"docs/runbooks.md#{rule['alert'].lower()}"
                assert rule["annotations"]["runbook"] == anchor

    def test_promtool_takes_them_and_they_fire_when_they_should(self, tmp_path: Path) -> None:
        promtool = helm.promtool()
        if promtool is None:
            pytest.skip("no promtool, and no Debian package of it")
        rules = (helm.CHART / "files" / "alerts.yaml").read_text()
        (tmp_path / "alerts.yaml").write_text(rules)
        cases = Path(__file__).with_name("alerts.yaml").read_text()
        (tmp_path / "cases.yaml").write_text(cases)
        for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "cases.yaml"]):
            done = subprocess.run(
                [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stdout + done.stderr
        alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
        assert alerts == set(re.findall(r"alertname: (\w+)", cases)), "each fires in a case"

    def test_every_metric_is_made_by_a_service(self) -> None:
        code = "\n".join(
            path.read_text() for path in (helm.ROOT / "services").rglob("*.py") if path.is_file()
        )
        names = set(
            re.findall(r"\bthermocline_\w+", str([r["expr"] for r in ALERTS["groups"][0]["rules"]]))
        )
        assert names
        for name in names:
            short = re.sub(r"^thermocline_(proxy|feeder|evictor|warmer)_", "", name)
            assert f'"{name}"' in code or f'"{short}"' in code, name

    def test_everything_is_scraped_where_it_is_watched(self) -> None:
        monitor = one(helm.template(*EVERYTHING), "PodMonitor")
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["crm", "shop"]}
        everywhere = helm.template(*EVERYTHING[:4], "--set", "clusterWide=true")
        assert one(everywhere, "PodMonitor")["spec"]["namespaceSelector"] == {"any": True}


class TestPlainManifests:
    """For those without Helm."""

    def test_are_the_chart_s_objects_in_a_namespace_of_their_own(self) -> None:
        objects = helm.parse(helm.plain_manifests("ops"))
        assert objects[0] == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops"}}
        kinds = [thing["kind"] for thing in objects]
        assert kinds.index("CustomResourceDefinition") < kinds.index("Deployment")
        assert "Pod" not in kinds
        assert {thing["metadata"].get("namespace", "ops") for thing in objects} == {"ops"}
