"""``python -m support.chaos --seed 7 --seconds 120``: one run on servers of its own."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from support.chaos.defects import DEFECTS
from support.chaos.recovery import Blow, recoveries, table
from support.chaos.report import summary
from support.chaos.run import Options, run


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m support.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--members", type=int, default=3, help="of each tier")
    parser.add_argument("--without-logins", action="store_true")
    parser.add_argument("--defect", choices=sorted(DEFECTS), help="a service is broken on purpose")
    parser.add_argument(
        "--recovery", type=int, default=0, metavar="ROUNDS", help="measure recovery"
    )
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is up is taken down
    options = Options(
        given.seed,
        given.seconds,
        members=given.members,
        logins=not given.without_logins,
        defect=given.defect,
        rounds=given.recovery,
    )
    result = run(options, lambda text: print(text, flush=True))
    if given.recovery:
        blows = [Blow(h.name, h.began, h.elected) for h in result.faults]
        print("\n".join(table(recoveries(blows, result.attempts))))
    print(summary(result))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
