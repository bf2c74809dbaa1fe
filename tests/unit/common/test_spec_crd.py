"""The CRD: fresh, structural, with defaults that the models have too."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from thermocline_common.spec import crd
from thermocline_common.spec.cel import CEL_RULES
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import Spec

ROOT = Path(__file__).parents[3]
CRD: dict[str, Any] = yaml.safe_load(crd.render_crd())
VERSION: dict[str, Any] = CRD["spec"]["versions"][0]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]


def nodes(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}".lstrip("."))
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from nodes(node["additionalProperties"], f"{path}{{}}")


ALL = dict(nodes(SCHEMA))


def test_written_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", str(ROOT / "crds")]) == 0, capsys.readouterr().err


def test_a_stale_or_missing_file_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crds = tmp_path / "crds"
    assert crd.main(["--check", str(crds)]) == 1
    assert crd.main([str(crds)]) == 0
    assert crd.main(["--check", str(crds)]) == 0
    page = tmp_path / "docs" / "reference" / crd.PAGE_FILE
    page.write_text(page.read_text() + "x")
    assert crd.main(["--check", str(crds)]) == 1
    assert "make crds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "node"), ALL.items(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_is_structural(path: str, node: Mapping[str, Any]) -> None:
    if node.get("x-kubernetes-int-or-string"):
        assert "type" not in node
        assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    else:
        assert isinstance(node["type"], str)
        assert not {"anyOf", "oneOf", "allOf", "not"} & node.keys()
    assert not {"$ref", "$defs", "title", "const", "nullable"} & node.keys()
    assert node.get("additionalProperties") is not False
    assert not ("properties" in node and "additionalProperties" in node)
    if node.get("x-kubernetes-list-type") == "map":
        (key,) = node["x-kubernetes-list-map-keys"]
        assert key in node["items"]["required"]
    if path.startswith("spec.") and "{}" not in path and "[]" not in path:
        assert node.get("description"), "every field of the spec is explained"


def test_every_cel_rule_is_in_the_schema() -> None:
    found = {path for path, node in ALL.items() if "x-kubernetes-validations" in node}
    assert found == set(CEL_RULES)
    for path, node in ALL.items():
        for rule in node.get("x-kubernetes-validations", ()):
            assert "\n" not in rule["message"], path
            # `\.` alone is no escape in a CEL string.
            assert not re.search(r"(?<!\\)\\(?!\\)", rule["rule"].replace("\\\\", "")), path


def test_uris_and_secret_names_have_no_pattern_that_would_print_them() -> None:
    for path, node in ALL.items():
        if path.endswith(".uri") or "SecretRef" in path:
            assert "pattern" not in node


def test_lists_and_texts_that_rules_read_are_bounded() -> None:
    for path in CEL_RULES:
        node = ALL[path]
        if node.get("type") == "string":
            assert "maxLength" in node, path
        for length in range(len(path)):
            if path[length:].startswith("[]"):
                assert "maxItems" in ALL[path[:length]], path


def test_patterns_are_of_re2() -> None:
    for path, node in ALL.items():
        if "pattern" in node:
            re.compile(node["pattern"])
            assert not re.search(r"\(\?[=!<]|\\[1-9]", node["pattern"]), path


def _with_defaults(value: Any, node: Mapping[str, Any]) -> Any:
    """What the API server makes of ``value``."""
    if isinstance(value, dict):
        out = dict(value)
        for name, inner in node.get("properties", {}).items():
            if name not in out and "default" in inner:
                out[name] = json.loads(json.dumps(inner["default"]))
            if name in out:
                out[name] = _with_defaults(out[name], inner)
        return out
    if isinstance(value, list):
        return [_with_defaults(item, node.get("items", {})) for item in value]
    return value


def test_defaults_of_the_schema_are_those_of_the_models() -> None:
    cases = json.loads((ROOT / "tests" / "cases" / "manifests.json").read_text("utf-8"))
    defaulted = _with_defaults(cases["base"], SCHEMA)
    assert defaulted["spec"]["proxy"]["lease"] == "5s"
    assert defaulted["spec"]["evictor"]["mode"] == "DryRun"
    assert defaulted["spec"]["collections"][0]["archiveReads"] == "Strict"
    assert parse_manifest(defaulted) == parse_manifest(cases["base"])
    # Nothing that the models default is missing: Kubernetes' tools show the whole.
    dumped = Spec.model_validate(parse_manifest(cases["base"]).spec).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    for service in ("proxy", "feeder", "evictor", "warmer"):
        scalars = {k: v for k, v in dumped[service].items() if not isinstance(v, dict | list)}
        assert scalars == {
            k: v for k, v in defaulted["spec"][service].items() if not isinstance(v, dict | list)
        }


def test_names_columns_and_subresources() -> None:
    assert CRD["metadata"]["name"] == "tieredreplicasets.thermocline.io"
    assert CRD["spec"]["names"]["shortNames"] == ["trs"]
    assert CRD["spec"]["names"]["categories"] == ["thermocline"]
    columns = [c["name"] for c in VERSION["additionalPrinterColumns"] if not c.get("priority")]
    assert columns == ["Phase", "Ready", "Warm", "Lag", "Coverage", "Age"]
    scale = VERSION["subresources"]["scale"]
    for path in (
        scale["specReplicasPath"],
        scale["statusReplicasPath"],
        scale["labelSelectorPath"],
    ):
        assert path.lstrip(".") in ALL
    for column in VERSION["additionalPrinterColumns"]:
        plain = re.sub(r"\[\?.*?\]", "[]", column["jsonPath"]).lstrip(".")
        assert plain in ALL or plain == "metadata.creationTimestamp"
