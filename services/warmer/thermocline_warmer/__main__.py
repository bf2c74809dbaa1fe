"""``thermocline-warmer``."""

import sys

from thermocline_common import runtime
from thermocline_warmer.service import WarmerService


def main(argv: list[str] | None = None) -> int:
    """Run the warmer; the exit code of the process."""
    return runtime.main(WarmerService, WarmerService.name, argv)


if __name__ == "__main__":
    sys.exit(main())
