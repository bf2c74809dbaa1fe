"""Command-line arguments that every service has."""

import argparse
from collections.abc import Callable
from pathlib import Path

from thermocline_common.admin import Address


def address(text: str) -> Address:
    """An argparse type for ``HOST:PORT``."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_arguments(
    name: str,
    argv: list[str] | None,
    extra: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.Namespace:
    """The arguments of service ``name``: ``manifest``, ``admin``, ``credentials``, ``log_level``; ``extra`` adds its own."""
    parser = argparse.ArgumentParser(f"thermocline-{name}", allow_abbrev=False)
    parser.add_argument(
        "--manifest", type=Path, required=True, metavar="FILE", help="the resource; followed"
    )
    parser.add_argument(
        "--admin",
        type=address,
        required=True,
        metavar="HOST:PORT",
        help="serves /healthz, /readyz, /status and /metrics",
    )
    parser.add_argument(
        "--credentials",
        type=Path,
        metavar="DIR",
        help="holds archive/ and fast-tier/ with username, password, ca.crt, tls.crt + tls.key or tls.pem",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="(info)"
    )
    if extra is not None:
        extra(parser)
    return parser.parse_args(argv)
