"""A difference, told so that a person can look into it."""

from collections.abc import Mapping
from typing import Any

from bson import decode
from bson.errors import BSONError

from support.differential.step import Step
from support.mongod import ReplicaSet
from support.services import Thermocline


class Mismatch(AssertionError):
    """The two answers differ; the message holds all that is needed to look into it."""


class Places:
    """Where a document is: in the plain server, in either tier, among the removal records."""

    def __init__(self, oracle: ReplicaSet, thermocline: Thermocline) -> None:
        self._oracle = oracle
        self._thermocline = thermocline

    def where(self, namespace: str, value: Any) -> str:
        """All copies of one ``_id``."""
        database, _, collection = namespace.partition(".")
        with (
            self._oracle.client() as oracle,
            self._thermocline.fast.client() as fast,
            self._thermocline.archive.client() as archive,
        ):
            record = list(
                fast["thermocline"]["removed"].find({"_id": {"ns": namespace, "id": value}})
            )
            held = [
                _shortened(client[database][collection].find_one({"_id": {"$eq": value}}))
                for client in (oracle, fast, archive)
            ]
        return (
            f"_id {value!r}:\n  plain   {held[0]}\n  fast    {held[1]}"
            f"\n  record  {record}\n  archive {held[2]}"
        )

    def standing(self, namespace: str) -> str:
        """The coverage document, and the UUIDs of the collections that both tiers have now."""
        database, _, collection = namespace.partition(".")
        uuids = {}
        tiers = (("fast", self._thermocline.fast), ("archive", self._thermocline.archive))
        for name, replica_set in tiers:
            with replica_set.client() as client:
                found = client[database].list_collections(filter={"name": collection})
                uuids[name] = [entry["info"].get("uuid") for entry in found]
        return f"coverage of {namespace}: {self._thermocline.coverage(namespace)}\n  collections {uuids}"

    def describe(
        self,
        place: str,
        what: str,
        step: Step,
        command: Mapping[str, Any],
        expected: Any,
        answered: Any,
    ) -> str:
        """The report of a step."""
        lines = [f"{place}: {what} differs ({step.kind} on {step.database})"]
        lines.append(f"command:  {str(command)[:4000]}")
        for name, answer in (("plain", expected), ("proxied", answered)):
            lines.append(
                f"{name + ':':9} {_readable(answer[0])} batches={answer[1]} documents={len(answer[2])}"
            )
        different = set(expected[2]) ^ set(answered[2])
        lines += [
            f"only {n}: {_shortened(_decoded(d))}"
            for n, a in (("plain", expected), ("proxied", answered))
            for d in a[2]
            if d in different
        ]
        ids = list(step.touched) or [_decoded(raw).get("_id") for raw in different][:5]
        if step.name not in ("renameCollection", "dropDatabase", "listCollections"):
            lines += [self.where(step.namespace, value) for value in ids if value is not None]
            lines.append(self.standing(step.namespace))
        return "\n".join(lines)


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        return decode(raw)
    except BSONError as error:
        return {"undecodable": repr(error), "raw": raw[:200]}


def _shortened(document: Any) -> str:
    text = str(document)
    return text if len(text) < 3000 else text[:3000] + "..."


def _readable(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _shortened(_decoded(v)) if isinstance(v, bytes) else v for k, v in reply.items()}
