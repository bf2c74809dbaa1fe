"""``python -m support.schedules``: all small mixes in every order, then mixes and orders at random."""

import argparse
import asyncio
import secrets
import sys
import time

from support.mongod import ReplicaSet
from support.schedules.mixes import all_mixes, small_mixes
from support.schedules.runner import run_enumerated, run_random, worlds
from support.schedules.scheduler import Violation
from support.schedules.world import JOURNAL_AT_ONCE


async def run(arguments: argparse.Namespace) -> int:
    """The process's exit code."""
    began = time.monotonic()
    mixes = [m for m in all_mixes() if arguments.mix in str(m)]
    small = [m for m in small_mixes() if arguments.mix in str(m)]
    with (
        ReplicaSet("fast", extra=JOURNAL_AT_ONCE) as fast,
        ReplicaSet("archive", extra=JOURNAL_AT_ONCE) as archive,
    ):
        async with worlds(fast, archive) as opened:
            try:
                if arguments.preemptions >= 0 and small:
                    ran = await run_enumerated(
                        opened,
                        small,
                        preemptions=arguments.preemptions,
                        seconds=arguments.seconds / 2,
                        seed=arguments.seed,
                    )
                    print(f"enumerated: {ran}", flush=True)
                left = arguments.seconds - (time.monotonic() - began)
                print(f"at random, seed {arguments.seed}", flush=True)
                print(await run_random(opened, mixes, seed=arguments.seed, seconds=left))
            except Violation as violation:
                print(violation)
                return 1
    return 0


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="support.schedules", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--mix", default="", help="only mixes whose text holds this")
    parser.add_argument(
        "--preemptions", type=int, default=2, help="of the enumerated orders; -1: only at random"
    )
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
