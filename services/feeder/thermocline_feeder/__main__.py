"""``thermocline-feeder``: replays the fast tier's writes into the archive and moves namespaces."""

import argparse
import sys

from thermocline_common.runtime import main as run
from thermocline_feeder.service import FeederService


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain-and-exit",
        action="store_true",
        help="bring every namespace to Passthrough and end (0: drained, 3: not everything could be replayed)",
    )


def main() -> int:
    """The exit code: 0 ended as asked (or drained), 2 unusable arguments or manifest, 3 not drained."""
    return run(FeederService, "feeder", extra=_arguments)


if __name__ == "__main__":
    sys.exit(main())
