"""Filling the archive directly, as the years before Thermocline did."""

from typing import Any

from pymongo import ASCENDING, MongoClient
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from demo.orders import Catalogue

BATCH = 2_000


def load(client: MongoClient[dict[str, Any]], namespace: str, catalogue: Catalogue) -> None:
    """Insert the catalogue into the archive and build the indexes a shop would have."""
    database, collection = namespace.split(".", 1)
    orders = client[database][collection]
    with Progress(
        TextColumn("loading orders into the archive"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ) as progress:
        task = progress.add_task("load", total=catalogue.count)
        for start in range(0, catalogue.count, BATCH):
            stop = min(start + BATCH, catalogue.count)
            orders.insert_many(
                [catalogue.order(number) for number in range(start, stop)], ordered=False
            )
            progress.update(task, completed=stop)
    orders.create_index([("createdAt", ASCENDING)])
    orders.create_index([("customer", ASCENDING), ("createdAt", ASCENDING)])
