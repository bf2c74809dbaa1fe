"""Case M17: whatever the filter's unique key is answered by, a match is the only match, with arrays too.

The fast tier's answer to a whole unique key is taken for complete once it holds a match. That is right
only if no second document can match the filter without holding the same key of the index.
"""

import itertools
import random
from typing import Any

import bson
import pytest
from pymongo.errors import BulkWriteError

from support.mongod import ReplicaSet
from thermocline_common.coverage import UniqueIndex
from thermocline_proxy.commands.predicates import unique_key

pytestmark = pytest.mark.integration
SCALARS = list(range(12))
SAFE = [("a",), ("a.b",), ("a", "c"), ("a.b", "c"), ("c.b", "a.b")]
"""Kinds of keys with which one match is all, even where documents hold arrays."""
UNSAFE = [("a.x", "a.y"), ("a.0",), ("a", "a.b"), ("c", "a.x", "a.y")]
CROSSED: list[dict[str, Any]] = [
    {"a": [{"x": 98, "y": 0}, {"x": 0, "y": 99}], "c": 97},
    {"a": {"x": 98, "y": 99}, "c": 97},
]
"""Different keys of ``a.x, a.y``, both matched by 98, 99: by two elements, and by one."""


def value(chance: random.Random, depth: int = 2) -> Any:
    kind = chance.randrange(4 if depth else 2)
    if kind < 2:
        return chance.choice(SCALARS)
    if kind == 2:
        return [value(chance, depth - 1) for _ in range(chance.randrange(1, 4))]
    return {n: value(chance, depth - 1) for n in chance.sample("bbxy0", 3)}


@pytest.mark.parametrize("paths", [*SAFE, *UNSAFE], ids="+".join)
def test_a_match_of_a_whole_unique_key_is_the_only_one(
    archive: ReplicaSet, paths: tuple[str, ...]
) -> None:
    chance = random.Random(17)
    index = UniqueIndex("u", paths, plain=True)
    several = 0
    with archive.client() as client:
        keys = client.shop.keys
        keys.create_index([(path, 1) for path in paths], unique=True, name="u")
        try:
            documents = [{"a": value(chance), "c": value(chance)} for _ in range(1_500)]
            keys.insert_many([*CROSSED, *documents], ordered=False)
        except BulkWriteError as error:
            codes = {e["code"] for e in error.details["writeErrors"]}
            assert codes <= {11000, 171, 16746}, "equal keys, and what no index takes"
        assert any(isinstance(d["a"], list) for d in keys.find()), "the index is multikey"
        assert keys.count_documents({}) > 10
        asked = list(itertools.product(SCALARS, repeat=len(paths)))
        if len(asked) > 150:
            asked = chance.sample(asked, 150)
        for values in [*asked, (97, 98, 99)[-len(paths) :]]:
            query = dict(zip(paths, values, strict=True))
            matches = list(keys.find(query).limit(2))
            served = unique_key(bson.encode(query), (index,)) is not None
            assert served is (paths in SAFE)
            assert len(matches) < 2 or not served, (query, matches)
            several += len(matches) > 1
    if "a.y" in paths:
        assert several, "without the rule, the fast tier's match would have hidden another one"
