"""``thermocline-feeder``: replays the fast tier's writes into the archive and moves namespaces."""

import argparse
import gc
import sys

from thermocline_common.runtime import main as run
from thermocline_feeder.service import FeederService

_COLLECTOR_THRESHOLDS = (20_000, 20, 50)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain-and-exit",
        action="store_true",
        help="bring every namespace to Passthrough and end (0: drained, 3: not everything could be replayed)",
    )


def main() -> int:
    """The exit code: 0 ended as asked (or drained), 2 unusable arguments or manifest, 3 not drained."""
    # A batch makes tens of thousands of objects that end without the collector, and what was imported lives for
    # ever: with Python's own thresholds, looking through all of them takes a fifth of the feeder's time.
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    return run(FeederService, "feeder", extra=_arguments)


if __name__ == "__main__":
    sys.exit(main())
