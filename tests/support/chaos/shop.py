"""The application's collections, their policies, and what faults make of these. Pure."""

from typing import Any, Final

from support.chaos.clients import DATABASE
from support.chaos.ddl import SCRATCH
from support.chaos.money import ACCOUNTS, COUNTERS, TRANSFERS
from support.chaos.orders import ORDERS
from support.chaos.registers import LOCKS, REGISTERS

AGED: Final = (REGISTERS, LOCKS, ORDERS, COUNTERS, ACCOUNTS, TRANSFERS)
KEYS: Final = 160
"""Registers, of which half are there at the beginning."""


def policies(detail: str = "", max_age: int = 8) -> list[dict[str, Any]]:
    """The collections' policies, and what the faults make of them."""
    aged = [
        {"namespace": f"{DATABASE}.{name}", "ageField": "at", "maxAge": f"{max_age}s"}
        for name in AGED
    ]
    kept = [{"namespace": f"{DATABASE}.{name}", "keep": "All"} for name in SCRATCH]
    match detail:
        case "longer":
            aged = [{**policy, "maxAge": f"{max_age * 3}s"} for policy in aged]
        case "shorter":
            aged = [{**policy, "maxAge": f"{max_age // 2}s"} for policy in aged]
        case "another field":
            aged = [
                {**policy, "ageField": "at2"} if i in (0, 2) else policy
                for i, policy in enumerate(aged)
            ]
        case "keep all":
            name = f"{DATABASE}.{COUNTERS}"
            aged = [p for p in aged if p["namespace"] != name]
            kept.append({"namespace": name, "keep": "All"})
        case "one left out":
            aged = [p for p in aged if p["namespace"] != f"{DATABASE}.{REGISTERS}"]
    return [*aged, *kept]
