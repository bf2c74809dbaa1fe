"""``python -m support.differential --seed 7 --seconds 60``: one run on servers of its own, with logins.

A failure prints the seed, the step, both answers, and where the documents are.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from support.differential.run import SECOND_PROXY, Differential, make
from support.fixtures import ARCHIVE_KEY, CLOCK_AHEAD_SECONDS, FAST_KEY
from support.mongod import ReplicaSet


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        help="a kind of step to leave out; changes, transactions",
    )
    parser.add_argument(
        "--paranoid", action="store_true", help="compare everything after each write"
    )
    parser.add_argument("--without-logins", action="store_true")
    options = parser.parse_args(arguments)
    keys = (None, None) if options.without_logins else (FAST_KEY, ARCHIVE_KEY)
    with ExitStack() as stack:
        fast = stack.enter_context(ReplicaSet("fast", keyfile=keys[0]))
        archive = stack.enter_context(ReplicaSet("archive", keyfile=keys[1]))
        oracle = stack.enter_context(ReplicaSet("plain"))
        if not options.without_logins:
            archive.push_clock(CLOCK_AHEAD_SECONDS)
        thermocline = make(fast, archive, options.streams)
        run = Differential(
            oracle, thermocline, options.seed, options.streams, options.without, options.paranoid
        )
        run.prepare()
        with thermocline, thermocline.logs_on_failure():
            thermocline.services[SECOND_PROXY].start()
            thermocline.services[SECOND_PROXY].wait_ready()
            thermocline.wait_state("Active")
            print(f"seed {options.seed}, {options.seconds:.0f} s:\n{run.run(options.seconds)}")
            print(f"{run.verify()} documents equal at the end; {thermocline.evicted()} evicted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
