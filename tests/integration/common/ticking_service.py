"""A tiny service that counts documents of the archive, to test the runtime with: run as a program.

``fail-once`` in its manifest's name makes its first run fail.
"""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from pymongo.errors import PyMongoError

from thermocline_common.runtime import Context, main

RUNS = 0


class TickingService:
    """Looks at the archive ten times a second."""

    name = "ticking"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.turns = 0
        self.documents: int | None = None
        self.collections = 0
        self.changes = 0

    async def run(self, context: Context) -> None:
        global RUNS
        RUNS += 1
        if RUNS == 1 and "fail-once" in context.manifest.current.metadata.name:
            raise RuntimeError("as asked, mongodb://user:secret@host/ notwithstanding")
        turns = Counter("ticking_turns", "Turns of the loop.", registry=context.registry)
        follower = asyncio.create_task(self.follow(context))
        while not await context.stopping(0.1):
            context.heartbeat.beat()
            self.turns += 1
            turns.inc()
            try:
                self.documents = await context.tiers.archive["shop"]["orders"].count_documents({})
            except PyMongoError:
                self.documents = None
        follower.cancel()
        await asyncio.sleep(self.arguments.linger)
        print(f"finished work in hand after {RUNS} runs", flush=True)
        context.exit_code = self.arguments.exit_code

    async def follow(self, context: Context) -> None:
        async for manifest in context.manifest.changes():
            self.collections = len(manifest.spec.collections)
            self.changes += 1

    def status(self) -> Mapping[str, Any]:
        return {
            "documents": self.documents,
            "collections": self.collections,
            "changes": self.changes,
        }

    def ready(self) -> bool:
        return self.turns > 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--exit-code", type=int, default=0)


if __name__ == "__main__":
    raise SystemExit(main(TickingService, "ticking", extra=add_arguments))
