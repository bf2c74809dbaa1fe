"""``thermocline-proxy``: what applications connect to."""

import argparse
import contextlib
import gc
import os
import resource
import sys

import uvloop

from thermocline_common.names import ZONE_VARIABLE
from thermocline_common.runtime import main as run
from thermocline_common.settings import address
from thermocline_proxy.server import ProxyService

_COLLECTOR_THRESHOLDS = (20_000, 20, 50)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=address,
        required=True,
        metavar="HOST:PORT",
        help="where applications connect",
    )
    parser.add_argument(
        "--zone",
        default=os.environ.get(ZONE_VARIABLE, ""),
        help=f"this proxy's own zone, for spec.proxy.locality (${ZONE_VARIABLE})",
    )
    parser.add_argument(
        "--share-port",
        action="store_true",
        help="let other proxies of this host listen at the same address, each for its part of the connections",
    )


def _take_descriptors() -> None:
    """As many as the system allows: each connection needs one, and the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: list[str] | None = None) -> int:
    """Run the proxy until it is told to stop; the exit code."""
    _take_descriptors()
    # Most of the objects alive after the imports live for ever; collecting them again and again costs
    # more than the rest of a relayed command.
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    return run(ProxyService, "proxy", argv, _arguments, uvloop.new_event_loop)


if __name__ == "__main__":
    sys.exit(main())
