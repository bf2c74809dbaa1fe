"""What replay knows of the archive's documents without reading them: those that it wrote itself."""

from collections.abc import Hashable, Iterable

from thermocline_common.fidelity import is_plain
from thermocline_common.ids import DocId
from thermocline_feeder.plan.verdicts import Verdict

LIMIT = 400_000
"""Ids remembered in all: some 40 MB at the most."""


def plain_ids(verdicts: Iterable[Verdict]) -> dict[str, set[DocId]]:
    """By namespace the ids whose new document is plain."""
    found: dict[str, set[DocId]] = {}
    for namespace, doc_id, document, _ in verdicts:
        if document is not None and is_plain(document):
            found.setdefault(namespace, set()).add(doc_id)
    return found


class Known:
    """Ids whose document in A is plain (:func:`thermocline_common.fidelity.is_plain`), or is absent.

    It rests on the single writer: what replay committed stands there until replay writes again. So an id is
    learned when its write was committed, and everything is forgotten with any doubt: an error, another
    opening of the stream, another pair of collections (``of``: a value that names the present one), a
    write in A that isn't replay's. Forgetting costs speed alone.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._half = limit // 2
        self._young: dict[str, set[DocId]] = {}
        self._old: dict[str, set[DocId]] = {}
        self._of: dict[str, Hashable] = {}
        self._count = 0

    def among(self, namespace: str, of: Hashable, ids: Iterable[DocId]) -> set[DocId]:
        """Those of ``ids`` that are known."""
        if self._of.get(namespace) != of:
            return set()
        young, old = self._young.get(namespace, set()), self._old.get(namespace, set())
        return {i for i in ids if i in young or i in old}

    def learn(self, namespace: str, of: Hashable, plain: set[DocId], others: set[DocId]) -> None:
        """Committed: ``plain`` are so now, ``others`` may be anything."""
        if self._of.get(namespace) != of:
            self.forget(namespace)
            self._of[namespace] = of
        young = self._young.setdefault(namespace, set())
        before = len(young)
        young |= plain
        young -= others
        if namespace in self._old:
            self._old[namespace] -= others
        self._count += len(young) - before
        if self._count > self._half:
            # The young become the old, so that what was written lately stays.
            self._old, self._young, self._count = self._young, {}, 0

    def forget(self, namespace: str) -> None:
        """Something else may have written there."""
        self._count -= len(self._young.pop(namespace, ()))
        self._old.pop(namespace, None)
        self._of.pop(namespace, None)

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old, self._of, self._count = {}, {}, {}, 0
