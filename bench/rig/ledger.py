"""What one generator process knows of its own documents, so that it can tell a wrong answer.

Every process owns the documents whose number leaves its remainder: nobody else changes them. Updates count
up, so a read must find at least what was acknowledged before it was sent, and at most what was sent
before its answer came; several operations on one document may be under way at a time.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """``owner`` of ``owners`` (from 0), over ``count`` loaded documents."""

    owner: int
    owners: int
    count: int
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Updates by document that were acknowledged."""
    sent: dict[int, int] = field(default_factory=dict)
    """Updates by document that were sent, whatever became of them."""
    _inserts: int = 0
    _readable: int = 0
    _done: set[int] = field(default_factory=set)

    def _first(self) -> int:
        return self.count + (self.owner - self.count) % self.owners

    @property
    def top(self) -> int:
        """One above the highest of our documents that is known to be there."""
        if not self._readable:
            return self.count
        return self._first() + (self._readable - 1) * self.owners + 1

    def own(self, number: int) -> int:
        """The nearest of our documents at or below ``number`` (or our first)."""
        aligned = number - (number - self.owner) % self.owners
        return aligned if aligned >= 0 else self.owner

    def least(self, number: int) -> int:
        """The fewest updates that a read sent now must find."""
        return self.acknowledged.get(number, 0)

    def most(self, number: int) -> int:
        """The most updates that a read answered now may have found."""
        return self.sent.get(number, 0)

    def update_sent(self, number: int) -> None:
        """An update goes out."""
        self.sent[number] = self.sent.get(number, 0) + 1

    def update_acknowledged(self, number: int) -> None:
        """It was done."""
        self.acknowledged[number] = self.acknowledged.get(number, 0) + 1

    def next_insert(self) -> int:
        """The number of the next document to insert."""
        number = self._first() + self._inserts * self.owners
        self._inserts += 1
        return number

    def insert_acknowledged(self, number: int) -> None:
        """It is there; it is read once all before it are there, too."""
        self._done.add((number - self._first()) // self.owners)
        while self._readable in self._done:
            self._done.discard(self._readable)
            self._readable += 1
