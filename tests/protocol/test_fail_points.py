"""The fail point ``failCommand`` through the proxy does to a client's commands what mongod's own does."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COMPARED = ("ok", "n", "code", "codeName", "errmsg", "errorLabels", "writeConcernError")
INSERT = {"insert": "c", "documents": [{}]}
FIND = {"find": "c", "filter": {"_id": 0}}
WATCH = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
RETRYABLE = {**INSERT, "txnNumber": Int64(1)}
BEGINNING = {
    **INSERT, "txnNumber": Int64(1), "startTransaction": True, "autocommit": False,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any], Mapping[str, Any]]] = [
    ("a code", {"errorCode": 91}, FIND),
    ("a code without a name here", {"errorCode": 4242}, FIND),
    ("a retryable write", {"errorCode": 91}, RETRYABLE),
    ("not for a driver to retry", {"errorCode": 64}, RETRYABLE),
    ("host not found", {"errorCode": 7}, RETRYABLE),
    ("a write conflict", {"errorCode": 112}, BEGINNING),
    ("no such transaction", {"errorCode": 251}, BEGINNING),
    ("unknown, within a transaction", {"errorCode": 8}, BEGINNING),
    ("labels of the test's own", {"errorCode": 91, "errorLabels": ["Mine"]}, RETRYABLE),
    ("no labels", {"errorCode": 91, "errorLabels": []}, RETRYABLE),
    ("a change stream", {"errorCode": 91}, WATCH),
    ("a write concern error", {"writeConcernError": {"code": 91, "errmsg": "late"}}, RETRYABLE),
    ("one that nobody retries", {"writeConcernError": {"code": 64, "errmsg": "late"}}, RETRYABLE),
    (
        "one with labels",
        {"writeConcernError": {"code": 91, "errmsg": "late"}, "errorLabels": ["Mine"]},
        RETRYABLE,
    ),
    ("none for reads", {"writeConcernError": {"code": 91, "errmsg": "late"}}, FIND),
    ("a broken connection", {"closeConnection": True}, FIND),
    ("a short wait", {"blockConnection": True, "blockTimeMS": 50}, INSERT),
    (
        "a wait that is too long",
        {"blockConnection": True, "blockTimeMS": 3_000},
        {**FIND, "maxTimeMS": 100},
    ),
    ("another collection", {"errorCode": 91, "namespace": "failing.other"}, FIND),
    ("this collection", {"errorCode": 91, "namespace": "failing.c"}, FIND),
    ("another application", {"errorCode": 91, "appName": "other"}, FIND),
    ("another command", {"errorCode": 91, "failCommands": ["delete"]}, FIND),
]


def answers(
    client: MongoClient[dict[str, Any]],
    data: dict[str, Any],
    command: Any,
    stack: contextlib.ExitStack,
) -> Any:
    """What the command is answered with twice, while the fail point lasts for one."""
    point = {"failCommands": [next(iter(command))], "appName": "tester", **data}
    configure: Callable[..., Any] = lambda mode: client.admin.command(  # noqa: E731
        "configureFailPoint", "failCommand", mode=mode, data=point
    )
    configure({"times": 1})
    seen = []
    reply: Any
    for _ in range(2):
        session = stack.enter_context(client.start_session())  # kept: no other gets its id
        try:
            reply = client["failing"].command(dict(command), session=session)
        except AutoReconnect as error:
            if error.details or "connection closed" not in str(error):
                reply = error.details
            else:
                reply = {"errmsg": "closed"}
        except OperationFailure as error:
            reply = error.details
        answered = dict(reply or {})
        seen.append({key: answered[key] for key in COMPARED if key in answered})
        if "autocommit" in command:
            end = {"abortTransaction": 1, "txnNumber": Int64(1), "autocommit": False}
            with contextlib.suppress(OperationFailure):
                client.admin.command(end, session=session)
    client.admin.command("configureFailPoint", "failCommand", mode="off")
    return seen


def test_it_is_mongods(make_replica_set: Callable[..., ReplicaSet]) -> None:
    fast = make_replica_set("fast", test_commands=True)
    archive = make_replica_set("archive", test_commands=True)
    thermocline = Thermocline(fast, archive, [], mode="Passthrough", environment=HASTE)
    options: dict[str, Any] = {
        "appname": "tester", "retryReads": False, "retryWrites": False,
        # Code 91 makes a driver ask again whether the server is there.
        "heartbeatFrequencyMS": 500, "serverMonitoringMode": "poll",
    }  # fmt: skip
    with (
        thermocline.logs_on_failure(),
        thermocline,
        archive.client(**options) as plain,
        thermocline.client(**options) as client,
        contextlib.ExitStack() as stack,
    ):
        plain["failing"]["c"].insert_one({"_id": 0})
        different = {}
        for name, data, command in CASES:
            expected = answers(plain, data, command, stack)
            found = answers(client, data, command, stack)
            if expected != found:
                different[name] = (expected, found)
        assert not different


def test_it_is_refused_without_test_commands(fast: ReplicaSet, archive: ReplicaSet) -> None:
    thermocline = Thermocline(fast, archive, [], mode="Passthrough", environment=HASTE)
    with thermocline.logs_on_failure(), thermocline, thermocline.client() as client:
        with pytest.raises(OperationFailure, match="no such command") as caught:
            client.admin.command(
                "configureFailPoint",
                "failCommand",
                mode="alwaysOn",
                data={"failCommands": ["find"], "errorCode": 91},
            )
        assert caught.value.code == 59
        assert client["failing"]["c"].find_one() is None
