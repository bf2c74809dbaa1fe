"""``thermocline-evictor``."""

import sys

from thermocline_common import runtime
from thermocline_evictor.service import EvictorService


def main(argv: list[str] | None = None) -> int:
    """Run the evictor; the exit code of the process."""
    return runtime.main(EvictorService, EvictorService.name, argv)


if __name__ == "__main__":
    sys.exit(main())
