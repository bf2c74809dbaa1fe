"""Seeded streams of commands.

A stream works on its own *partition* of each shared collection (field ``p``, ids, unique keys), so that
several run side by side and the answer to each command still has one right value; and on a database of
its own. Within a partition ids and unique keys are few, so that operations collide.
"""

from collections.abc import Callable, Iterator, Sequence

from support.differential.beside import Beside
from support.differential.layout import SHARED, Clock, Collection, own_collections
from support.differential.modifying import Modifying
from support.differential.reads import Reads
from support.differential.schema import Schema
from support.differential.step import Step
from support.differential.values import Values

Maker = Callable[[Collection], "Step | list[Step]"]
OWN_SHARE = 0.3


class Stream(Schema, Modifying, Reads, Beside, Values):
    """An endless stream of steps for one partition; ``without``: kinds left out."""

    def __init__(
        self, seed: int, partition: int, clock: Clock, without: Sequence[str] = ()
    ) -> None:
        super().__init__(seed, partition, clock)
        self.without = without

    def __iter__(self) -> Iterator[Step]:
        kinds = self._kinds()
        weights = [weight for weight, _ in kinds]
        makers = [maker for _, maker in kinds]
        while True:
            made = self.random.choices(makers, weights)[0](self.a_collection())
            for step in made if isinstance(made, list) else [made]:
                if step.kind not in self.without:
                    yield step

    def a_collection(self) -> Collection:
        """A shared one, or one of the stream's own."""
        own = own_collections(self.partition)
        return self.random.choice(own if self.chance(OWN_SHARE) else SHARED)

    def _kinds(self) -> list[tuple[float, Maker]]:
        return [
            (10, self.insert), (6, self.insert_many), (14, self.update_by_id), (6, self.update_by_ref),
            (4, self.update_many), (8, self.upsert), (7, self.delete_by_id), (3, self.delete_by_ref),
            (2, self.delete_many), (6, self.find_and_modify), (4, self.find_and_remove),
            (4, self.special_find_and_modify), (5, self.update_batch), (3, self.delete_batch), (5, self.special_update),
            (2, self.special_delete), (2, self.upsert_by_ref),
            (10, self.find_by_id), (4, self.find_in), (12, self.find_range), (8, self.find_newest), (3, self.find_by_key),
            (2, self.find_any), (1, self.first_page), (0.5, self.find_snapshot), (5, self.special_find), (4, self.count),
            (3, self.distinct), (8, self.aggregate), (4, self.wrong),
            (2, self.view), (1, self.output), (1, self.capped), (1, self.series), (0.3, self.untierable), (1, self.listing),
            (4, self.light), (0.8, self.alone), (0.3, self.large),
        ]  # fmt: skip
