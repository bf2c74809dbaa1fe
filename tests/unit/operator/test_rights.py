"""The table of rights is what the operator calls, no more and no less."""

import copy
from typing import Any

from support.fake_kubernetes import FakeApi, FakeKubernetes, FakeReporter
from thermocline_operator.announcing import Announcer
from thermocline_operator.api import Call
from thermocline_operator.lease import LeaderLease
from thermocline_operator.plan.objects import KINDS
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.reconcile import Reconciler
from thermocline_operator.rights import RIGHTS
from thermocline_operator.status.events import Event
from thermocline_operator.status.reasons import EventReason
from thermocline_operator.watches import NETWORK_POLICIES, OWNED

KEY = ("shops", "shop")
SPEC: dict[str, Any] = {
    "archive": {
        "uri": "mongodb://archive:27017/?replicaSet=a",
        "credentialsSecretRef": {"name": "user"},
    },
    "fastTier": {"uri": "mongodb://fast:27017/?replicaSet=f"},
    "collections": [{"namespace": "shop.products", "keep": "All"}],
}


async def test_rights_are_the_recorded_calls() -> None:
    seen: set[tuple[str, str, str]] = set()

    def record(call: Call) -> None:
        seen.add((call.group, call.resource, call.verb))

    server = FakeKubernetes()
    api = FakeApi(server, record)
    server.put("namespaces", {"metadata": {"name": "shops", "namespace": ""}})
    server.put(
        "tieredreplicasets",
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "shop", "namespace": "shops", "uid": "u"},
            "spec": copy.deepcopy(SPEC),
        },
    )
    settings = PodSettings("i", network_policies=True)
    announcer = Announcer(api, "test")
    reporter = FakeReporter()
    operator = Reconciler(api, settings, reporter, announcer)
    for _ in range(3):
        await operator.turn(KEY, True)
    # A feeder that works, one proxy less, a Secret that changes.
    labels = server.objects["deployments", "shops", "shop-feeder"]["metadata"]["labels"]
    server.put(
        "pods",
        {
            "metadata": {"name": "f", "namespace": "shops", "labels": labels},
            "status": {"podIP": "1.1.1.1"},
        },
    )
    reporter.answers["1.1.1.1"] = {
        "service": "feeder",
        "uid": "u",
        "appliedGeneration": 1,
        "feeder": {"role": "owner"},
    }
    server.put("secrets", {"metadata": {"name": "user", "namespace": "shops"}, "data": {}})
    server.edit("tieredreplicasets", *KEY, {"spec": {"proxy": {"replicas": 1}}})
    for _ in range(3):
        await operator.turn(KEY, True)
    await Reconciler(api, PodSettings("i"), reporter, announcer).turn(KEY, True)
    # The same event again, which an earlier process has written.
    resource = server.objects["tieredreplicasets", "shops", "shop"]
    for _ in range(2):
        await Announcer(api, "test").tell(resource, Event(EventReason.READY, "text"))
    lease = LeaderLease(api, "ops", "l", "me")
    await lease.acquire()
    await lease.release()
    # kopf's own: what is watched is listed first.
    for group, _, plural in (*OWNED, NETWORK_POLICIES, ("thermocline.io", "", "tieredreplicasets")):
        seen |= {(group, plural, "list"), (group, plural, "watch")}
    # Server-side apply of what isn't there asks for both.
    applied = {kind.plural for kind in KINDS.values()}
    seen |= {(group, plural, "create") for group, plural, _ in seen if plural in applied}
    stated = {(right.group, right.resource, verb) for right in RIGHTS for verb in right.verbs}
    assert seen == stated
