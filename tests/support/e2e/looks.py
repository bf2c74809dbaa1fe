"""What the steps put into the tiers, and look at behind kubectl's back."""

import datetime as dt
import ssl
from collections.abc import Callable
from typing import Any, Final

from support.e2e.application import OLD_ORDERS
from support.e2e.cluster import Cluster
from support.e2e.tiered import Resource
from support.e2e.tiers import Tiers

RECENT_ORDERS: Final = 200
COMPONENTS: Final = ("proxy", "feeder", "evictor", "warmer")


def seed(tiers: Tiers) -> None:
    """What the archive held before: old orders, recent ones of 1 to 20 days, a small collection."""
    now = dt.datetime.now(dt.UTC)
    with tiers.archive.client() as client:
        orders = client["shop"]["orders"]
        orders.create_index("createdAt")
        orders.create_index("app")
        orders.insert_many(
            {"_id": f"old-{i}", "app": "old", "n": i * 3, "createdAt": now - dt.timedelta(days=40 + i % 300)}
            for i in range(OLD_ORDERS)
        )  # fmt: skip
        orders.insert_many(
            {"_id": f"recent-{i}", "app": "recent", "n": i, "createdAt": now - dt.timedelta(days=1 + i % 20)}
            for i in range(RECENT_ORDERS)
        )  # fmt: skip
        client["shop"]["products"].insert_many({"_id": i, "price": i} for i in range(20))


def in_fast_tier(tiers: Tiers, **query: Any) -> int:
    with tiers.fast.client() as client:
        return client["shop"]["orders"].count_documents(query)


def pods_of(cluster: Cluster, shop: Resource) -> dict[str, str]:
    """The uid of each of the resource's pods, by name."""
    found = cluster.pods(shop.namespace, shop.all_pods)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def settled(cluster: Cluster, shop: Resource, component: str, count: int) -> Callable[[], bool]:
    def look() -> bool:
        selector = shop.selector(component)
        return (
            len(cluster.ready_pods(shop.namespace, selector))
            == len(cluster.items("pods", shop.namespace, selector))
            == count
        )

    return look


def credentials(shop: Resource) -> dict[str, str]:
    """The version of the credentials that each service works with."""
    parts = shop.status().get("components", ())
    return {part["name"]: part.get("credentialsGeneration", "") for part in parts}


def shown_certificates(cluster: Cluster, shop: Resource) -> set[bytes]:
    """What the proxies show to those who connect now, as DER."""
    return {
        ssl.PEM_cert_to_DER_cert(
            ssl.get_server_certificate((pod["status"]["podIP"], 27017), timeout=20)
        )
        for pod in cluster.ready_pods(shop.namespace, shop.selector("proxy"))
    }
