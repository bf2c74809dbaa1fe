"""The page that administrators follow names exactly the privileges that the tests run with."""

import re
from pathlib import Path

import pytest

from support.accounts import privileges
from thermocline_common.coverage import Tier

PAGE = Path(__file__).resolve().parents[3] / "docs" / "accounts.md"
PLACES = {"cluster": "cluster", "every database": "", "`<db>`": "shop"}


def documented(table: str) -> set[tuple[str, str]]:
    found = set()
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:3]]
        if len(cells) < 2 or cells[0] in ("resource", "---"):
            continue
        places = [cells[0]] if cells[0] in PLACES else re.findall(r"`([^`]+)`", cells[0])
        for place in places:
            actions = " ".join(re.findall(r"`([^`]+)`", cells[1])).split()
            found |= {(PLACES.get(place, place), action) for action in actions}
    return found


def granted(tier: Tier) -> set[tuple[str, str]]:
    found = set()
    for privilege in privileges(tier, ["shop"]):
        resource = privilege["resource"]
        parts = [resource.get("db", "cluster"), resource.get("collection", "")]
        place = ".".join(part for part in parts if part)
        found |= {(place, action) for action in privilege["actions"]}
    return found


@pytest.mark.parametrize("tier", Tier)
def test_page(tier: Tier) -> None:
    both, fast = PAGE.read_text().split("Only on the fast tier:")
    wanted = documented(both) | (documented(fast) if tier is Tier.FAST else set())
    assert granted(tier) == wanted
