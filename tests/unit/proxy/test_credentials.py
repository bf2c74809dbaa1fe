"""Users of the archive: what is known of them, what is pretended, and how often the archive is asked."""

import asyncio
import base64
import uuid
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from thermocline_common.errors import CommandError
from thermocline_proxy.credentials import (
    CACHE_SECONDS,
    Credentials,
    Offer,
    as_user,
    parse_offer,
    pretend,
)


def stored(salt: bytes, count: int) -> dict[str, Any]:
    keys = {name: base64.b64encode(bytes(32)).decode() for name in ("storedKey", "serverKey")}
    return {"iterationCount": count, "salt": base64.b64encode(salt).decode(), **keys}


DOCUMENT = {
    "_id": "admin.u",
    "credentials": {
        "SCRAM-SHA-1": stored(b"s" * 16, 10_000),
        "SCRAM-SHA-256": stored(b"t" * 28, 15_000),
    },
}


def test_an_unknown_user_looks_like_a_known_one() -> None:
    offer = Offer()
    known = as_user(DOCUMENT, "admin.u", b"secret", offer)
    unknown = as_user({}, "admin.x", b"secret", offer)
    assert known.mechanisms == unknown.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-1")
    for mechanism in known.mechanisms:
        one, other = known.credentials[mechanism], unknown.credentials[mechanism]
        assert (len(one.salt), one.iterations) == (len(other.salt), other.iterations)


def test_a_mechanism_that_a_user_lacks_is_pretended() -> None:
    document = {"credentials": {"SCRAM-SHA-256": DOCUMENT["credentials"]["SCRAM-SHA-256"]}}  # type: ignore[index]
    user = as_user(document, "admin.u", b"secret", Offer())
    assert user.mechanisms == ("SCRAM-SHA-256",)
    assert user.credentials["SCRAM-SHA-256"].salt == b"t" * 28
    assert len(user.credentials["SCRAM-SHA-1"].salt) == 16


def test_pretended_salts_are_the_same_each_time_and_differ_by_user() -> None:
    offer = Offer()
    one, again = pretend("admin.x", b"secret", offer), pretend("admin.x", b"secret", offer)
    for mechanism, credential in one.items():
        assert credential.salt == again[mechanism].salt
        assert credential.stored_key != again[mechanism].stored_key
    others = [pretend("admin.y", b"secret", offer), pretend("admin.x", b"another", offer)]
    assert all(other["SCRAM-SHA-1"].salt != one["SCRAM-SHA-1"].salt for other in others)


def test_the_archives_parameters_count() -> None:
    offer = parse_offer(
        {
            "authenticationMechanisms": ["SCRAM-SHA-256", "MONGODB-X509"],
            "scramIterationCount": 5_000,
            "scramSHA256IterationCount": 20_000,
        }
    )
    assert offer.mechanisms == ("SCRAM-SHA-256",)
    assert offer.iterations == {"SCRAM-SHA-1": 5_000, "SCRAM-SHA-256": 20_000}
    assert as_user({}, "admin.x", b"", offer).mechanisms == ("SCRAM-SHA-256",)
    assert parse_offer({"ok": 1.0}) == Offer()


class Archive:
    """Stands for a client of the archive; counts what it is asked."""

    def __init__(self) -> None:
        self.users: dict[str, Any] = {"admin.u": DOCUMENT}
        self.own_id: Any = uuid.UUID(int=7)
        self.reads: list[str] = []
        self.failing = False

    def get_database(self, name: str, **options: Any) -> "Archive":
        assert name == "admin"
        return self

    async def command(self, question: dict[str, Any], **options: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.failing:
            raise AutoReconnect("down")
        if "getParameter" in question:
            return {"ok": 1.0}
        if "connectionStatus" in question:
            own = {"user": "thermocline", "db": "admin"}
            return {"authInfo": {"authenticatedUsers": [own] if self.own_id else []}}
        wanted = question["filter"]["_id"]
        if wanted == "admin.thermocline":
            return {"cursor": {"firstBatch": [{"userId": self.own_id}]}}
        self.reads.append(wanted)
        found = self.users.get(wanted)
        return {"cursor": {"firstBatch": [found] if found else []}}


def credentials(archive: Archive, now: list[float]) -> Credentials:
    return Credentials(archive, lambda: now[0])  # type: ignore[arg-type]


async def test_a_crowd_asks_once_and_again_after_a_while() -> None:
    archive, now = Archive(), [0.0]
    users = credentials(archive, now)
    found = await asyncio.gather(*(users.user("admin", "u") for _ in range(50)))
    assert archive.reads == ["admin.u"]
    assert all(user is found[0] for user in found)
    now[0] = CACHE_SECONDS - 0.1
    await users.user("admin", "u")
    assert len(archive.reads) == 1
    now[0] = CACHE_SECONDS + 0.1
    await users.user("admin", "u")
    assert len(archive.reads) == 2


@pytest.mark.parametrize("all_users", [False, True])
async def test_what_was_read_before_a_change_is_forgotten(all_users: bool) -> None:
    archive, now = Archive(), [0.0]
    users = credentials(archive, now)
    await users.user("admin", "u")
    reading = asyncio.create_task(users.user("admin", "x"))
    await asyncio.sleep(0)
    if all_users:
        users.forget()
    else:
        users.forget("admin", "u")
        users.forget("admin", "x")
    await reading  # begun before: it may be answered so, but isn't kept
    archive.reads.clear()
    await users.user("admin", "u")
    await users.user("admin", "x")
    assert archive.reads == ["admin.u", "admin.x"]


async def test_every_proxy_pretends_the_same_salt() -> None:
    salts = set()
    for own_id in (uuid.UUID(int=7), uuid.UUID(int=7), uuid.UUID(int=8)):
        archive = Archive()
        archive.own_id = own_id
        user = await credentials(archive, [0.0]).user("admin", "x")
        salts.add(user.credentials["SCRAM-SHA-256"].salt)
    assert len(salts) == 2


async def test_without_a_user_of_its_own_a_proxy_pretends_by_itself() -> None:
    archive = Archive()
    archive.own_id = None
    users = credentials(archive, [0.0])
    one, other = await users.user("admin", "x"), await users.user("admin", "y")
    assert one.credentials["SCRAM-SHA-1"].salt != other.credentials["SCRAM-SHA-1"].salt


async def test_an_archive_that_is_down_is_said_to_be_down() -> None:
    archive = Archive()
    archive.failing = True
    users = credentials(archive, [0.0])
    with pytest.raises(CommandError) as caught:
        await users.user("admin", "u")
    assert caught.value.code == 6
    archive.failing = False
    assert (await users.user("admin", "u")).credentials["SCRAM-SHA-1"].salt == b"s" * 16
