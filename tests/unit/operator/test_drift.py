"""Which part of an object is compared, and what counts as a change of it."""

from typing import Any

import pytest

from thermocline_operator.plan.drift import changed_paths, part

SHAPE = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "args": ["x", "y"],
        "containers": [{"name": "proxy", "image": "i", "resources": {"limits": {"cpu": "0.5"}}}],
    },
}
LIVE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1", "b": "2"}, "resourceVersion": "9"},
    "spec": {
        "replicas": 2,
        "args": ["x", "y"],
        "containers": [
            {"name": "sidecar", "image": "s"},
            {
                "name": "proxy",
                "image": "i",
                "terminationMessagePath": "/dev/null",
                "resources": {"limits": {"cpu": "500m"}},
            },
        ],
    },
    "status": {"replicas": 2},
}


def changed(**spec: Any) -> dict[str, Any]:
    return {**LIVE, "spec": {**LIVE["spec"], **spec}}


@pytest.mark.parametrize(
    ("now", "paths"),
    [
        (LIVE, []),
        ({**LIVE, "status": {}}, []),
        ({**LIVE, "metadata": {"labels": {"a": "1"}}}, []),
        ({**LIVE, "metadata": {"labels": {"b": "2"}}}, ["metadata.labels.a"]),
        (changed(replicas=3), ["spec.replicas"]),
        (changed(args=["x"]), ["spec.args"]),
        (changed(containers=LIVE["spec"]["containers"][1:]), []),
        (changed(containers=LIVE["spec"]["containers"][:1]), ["spec.containers"]),
        (changed(extra=1), []),
        ({"metadata": {}}, ["metadata.labels", "spec"]),
    ],
    ids=str,
)
def test_only_what_was_asked_for_counts(now: dict[str, Any], paths: list[str]) -> None:
    assert changed_paths(part(LIVE, SHAPE), part(now, SHAPE)) == paths
