"""The services' waits in tests: seconds where operation takes minutes.

The order of the protocol's waits is kept: an eviction still comes six times as long after its
announcement as a write may come after its look-up, and a removal record outlives every copy.
"""

from collections.abc import Mapping
from typing import Final

HASTE: Final[Mapping[str, str]] = {
    "THERMOCLINE_TEST_ANNOUNCE_SECONDS": "6",
    "THERMOCLINE_TEST_FEEDER_HEARTBEAT_INTERVAL": "0.3",
    "THERMOCLINE_TEST_FEEDER_TAKEOVER_AFTER": "2",
    "THERMOCLINE_TEST_FEEDER_MARKER_INTERVAL": "2",
    "THERMOCLINE_TEST_FEEDER_RECORD_AGE": "35",
    "THERMOCLINE_TEST_FEEDER_RECORD_SCAN": "2",
    "THERMOCLINE_TEST_FEEDER_STATE_POLL": "0.2",
    "THERMOCLINE_TEST_FEEDER_MOVE_RETRY": "1",
}
