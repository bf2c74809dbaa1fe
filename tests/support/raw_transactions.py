"""Transaction commands by hand: one session id, through any client, as different connections send them."""

import uuid
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient


class RawTransaction:
    """One transaction, which no driver follows."""

    def __init__(self, number: int = 1, lsid: dict[str, Any] | None = None) -> None:
        self.lsid = lsid or {"id": Binary.from_uuid(uuid.uuid4())}
        self.number = number

    def run(
        self,
        client: MongoClient[dict[str, Any]],
        command: dict[str, Any],
        *,
        start: bool = False,
        database: str = "bank",
    ) -> dict[str, Any]:
        """Send one statement; the reply, whatever it is."""
        fields: dict[str, Any] = {"txnNumber": Int64(self.number), "autocommit": False}
        if start:
            fields["startTransaction"] = True
        with client.start_session(causal_consistency=False) as session:
            # PyMongo knows no sessions of others; dirty ones don't go back into its pool.
            session._materialize()
            session._server_session.session_id = self.lsid
            session._server_session.mark_dirty()
            reply: dict[str, Any] = client[database].command(
                {**command, **fields}, check=False, session=session
            )
        print(next(iter(command)), reply)  # shown where a test fails
        return reply

    def increment(
        self,
        client: MongoClient[dict[str, Any]],
        collection: str,
        doc_id: Any,
        *,
        start: bool = False,
    ) -> dict[str, Any]:
        """``$inc`` of ``v`` by one."""
        update = {"q": {"_id": doc_id}, "u": {"$inc": {"v": 1}}}
        return self.run(client, {"update": collection, "updates": [update]}, start=start)

    def commit(self, client: MongoClient[dict[str, Any]]) -> dict[str, Any]:
        """Commit; may be repeated."""
        return self.run(client, {"commitTransaction": 1}, database="admin")

    def abort(self, client: MongoClient[dict[str, Any]]) -> dict[str, Any]:
        """Abort."""
        return self.run(client, {"abortTransaction": 1}, database="admin")
