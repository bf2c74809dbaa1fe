"""What an application knows of its documents: the truth that a test holds the tiers to. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]


@dataclass(slots=True)
class Ledger:
    """Documents of one application thread, each with one certain state.

    ``retired``: ids whose last write ended in an error that leaves open whether it was executed, with
    every state they may be in. They aren't used any more, so that the states stay what they are.
    """

    documents: dict[Any, Document] = field(default_factory=dict)
    retired: dict[Any, list[Document | None]] = field(default_factory=dict)

    def wrote(self, identity: Any, after: Document | None) -> None:
        """A write was acknowledged: the document is so now (None: it is gone)."""
        if after is None:
            self.documents.pop(identity, None)
        else:
            self.documents[identity] = after

    def doubt(self, identity: Any, after: Document | None) -> None:
        """A write may or may not have been executed."""
        self.retired[identity] = [self.documents.pop(identity, None), after]

    def check(self, found: Mapping[Any, Document]) -> list[str]:
        """What is wrong with these contents of the whole partition; empty if nothing is."""
        problems = []
        for identity, document in self.documents.items():
            if identity not in found:
                problems.append(f"lost: {document}")
            elif found[identity] != document:
                problems.append(f"differs: {found[identity]}, should be {document}")
        known = self.documents.keys() | self.retired.keys()
        problems += [f"came back: {found[i]}" for i in found if i not in known]
        for identity, states in self.retired.items():
            if found.get(identity) not in states:
                problems.append(f"in doubt, but neither: {found.get(identity)} of {states}")
        return problems
