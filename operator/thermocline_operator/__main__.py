"""``thermocline-operator``: watches TieredReplicaSets and carries them out."""

import asyncio
import faulthandler
import logging
import sys

from thermocline_common import logs
from thermocline_common.errors import ConfigError
from thermocline_operator.options import parse_options
from thermocline_operator.process import Process

log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 ended as asked, 1 failed, 2 unusable arguments, 3 the lease was lost."""
    options = parse_options(argv)
    logs.configure(options.log_level)
    faulthandler.enable()

    async def start() -> int:
        return await Process(options).run()

    try:
        return asyncio.run(start())
    except ConfigError as error:
        log.critical("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
