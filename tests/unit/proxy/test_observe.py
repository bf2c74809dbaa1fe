"""What the proxy counts."""

from prometheus_client import CollectorRegistry

from thermocline_common.coverage import Tier
from thermocline_proxy.observe import Observer


def test_reads_count_for_every_collection_that_they_touch_by_who_answered() -> None:
    observer = Observer(CollectorRegistry())
    observer.collection("shop.orders").fast.n += 3  # the short path
    observer.answered(["shop.orders"], Tier.FAST, "covered")
    observer.answered(["shop.orders", "shop.items"], Tier.ARCHIVE, "join")
    observer.answered(["shop.orders"], Tier.ARCHIVE, "no-bound")
    observer.answered(["shop.orders"], Tier.ARCHIVE, "no-bound")
    observer.answered([], Tier.ARCHIVE, "untiered")
    assert observer.status()["namespaces"] == {
        "shop.items": {"fast": 0, "archive": {"join": 1}},
        "shop.orders": {"fast": 4, "archive": {"join": 1, "no-bound": 2}},
    }


def test_collections_that_come_and_go_are_not_remembered_for_ever() -> None:
    observer = Observer(CollectorRegistry())
    for number in range(2_500):
        observer.answered([f"shop.c{number}"], Tier.FAST, "covered")
    assert len(observer.collections) <= 1_000
