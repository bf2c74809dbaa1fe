"""The CustomResourceDefinition, and ``python -m thermocline_common.spec.crd`` that writes it.

The models are the only source; ``--check`` fails where the written files are stale.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from thermocline_common import names
from thermocline_common.spec.models import Spec
from thermocline_common.spec.reference import reference_page
from thermocline_common.spec.resource_status import ResourceStatus
from thermocline_common.spec.schema import structural, validations

PLURAL: Final = "tieredreplicasets"
CRD_FILE: Final = f"{names.GROUP}_{PLURAL}.yaml"
PAGE_FILE: Final = "tieredreplicaset.md"
TEMPLATE_FILE: Final = "crds.yaml"

_COLUMNS: Final = (
    ("Phase", "string", ".status.phase", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Warm", "string", ".status.warm", 0),
    ("Lag", "string", ".status.lag", 0),
    ("Coverage", "string", ".status.coverage", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Mode", "string", ".spec.mode", 1),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
    ("Proxies", "integer", ".status.proxy.readyReplicas", 1),
)


def custom_resource_definition() -> dict[str, Any]:
    """The CRD as plain values."""
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "description": "Two MongoDB replica sets behind one endpoint: recent documents on a fast tier, all of them in an archive.",
                "type": "object",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": structural(Spec, "spec"),
                    "status": structural(ResourceStatus, "status"),
                },
                "x-kubernetes-validations": validations(""),
            }
        },
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.proxy.replicas",
                "statusReplicasPath": ".status.proxy.replicas",
                "labelSelectorPath": ".status.proxy.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": p} if p else {})}
            for name, kind, path, p in _COLUMNS
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["trs"],
                "categories": ["thermocline"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    """No aliases: they read badly, and not every tool takes them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render_crd() -> str:
    """The CRD as YAML."""
    head = "# Generated from thermocline_common.spec by `make crds`; don't edit.\n"
    body = yaml.dump(
        custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True
    )
    return head + str(body)


def render_template() -> str:
    """The CRD as a template of the Helm chart, which keeps it when a release is uninstalled.

    A template and not the chart's folder ``crds/``, which Helm never upgrades.
    """
    crd = render_crd().replace("{{", '{{ "{{" }}')
    name = f"metadata:\n  name: {PLURAL}.{names.GROUP}\n"
    kept = (
        f'{name}  labels:\n    {{{{- include "thermocline.labels" . | nindent 4 }}}}\n'
        "  annotations:\n    helm.sh/resource-policy: keep\n"
    )
    return f"{{{{- if .Values.crds.create }}}}\n{crd.replace(name, kept, 1)}{{{{- end }}}}\n"


def files(crds: Path, reference: Path, chart: Path) -> dict[Path, str]:
    """What is to be written, by path."""
    schema = structural(Spec, "spec")
    return {
        crds / CRD_FILE: render_crd(),
        reference / PAGE_FILE: reference_page(schema),
        chart / "templates" / TEMPLATE_FILE: render_template(),
    }


def main(argv: list[str] | None = None) -> int:
    """Write the files, or check them; 1 where they are stale."""
    parser = argparse.ArgumentParser(
        "python -m thermocline_common.spec.crd",
        description="CRD, reference page and the chart's template from the models",
    )
    parser.add_argument("crds", nargs="?", type=Path, default=Path("crds"))
    parser.add_argument("--reference", type=Path, help="(docs/reference beside it)")
    parser.add_argument("--chart", type=Path, help="(charts/thermocline beside it)")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a file is stale"
    )
    arguments = parser.parse_args(argv)
    beside = arguments.crds.resolve().parent
    reference = arguments.reference or beside / "docs" / "reference"
    chart = arguments.chart or beside / "charts" / "thermocline"
    stale = 0
    for path, text in files(arguments.crds, reference, chart).items():
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        if arguments.check:
            sys.stderr.write(f"{path} is stale: run `make crds`\n")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
