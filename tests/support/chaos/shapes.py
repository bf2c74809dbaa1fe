"""The shapes of what drivers answer."""

from typing import Any


async def listed(cursor: Any) -> Any:
    """What an asynchronous cursor holds that is still to be awaited."""
    return await (await cursor).to_list()


def counted(result: Any) -> int:
    """How many documents a write found."""
    if hasattr(result, "deleted_count"):
        return int(result.deleted_count)
    return int(result.matched_count)


def difference(found: Any, expected: Any) -> tuple[Any, Any]:
    """What only one of two lists has, if they are lists of documents."""
    if not (isinstance(found, list) and isinstance(expected, list)):
        return found, expected
    return [d for d in found if d not in expected] or found, [
        d for d in expected if d not in found
    ] or expected
