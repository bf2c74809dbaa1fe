"""What few applications send."""

import pytest

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

pytestmark = pytest.mark.integration


def test_the_plan_cache_of_a_tiered_collection(fast: ReplicaSet, archive: ReplicaSet) -> None:
    policies = [{"namespace": "shop.products", "keep": "All"}]
    with archive.client() as client:
        client.shop.products.create_index("sku")
        client.shop.products.create_index([("sku", 1), ("price", 1)])
        client.shop.products.insert_many([{"sku": n % 7, "price": n} for n in range(50)])
    with Thermocline(fast, archive, policies, environment=HASTE) as thermocline:
        thermocline.wait_state("Active")
        with archive.client() as client:
            for _ in range(3):
                list(client.shop.products.find({"sku": 3, "price": {"$gt": 5}}))
            expected = list(client.shop.products.aggregate([{"$planCacheStats": {}}]))
        assert expected
        with thermocline.client() as client:
            found = list(client.shop.products.aggregate([{"$planCacheStats": {}}]))
            assert [plan["planCacheKey"] for plan in found] == [
                plan["planCacheKey"] for plan in expected
            ]
