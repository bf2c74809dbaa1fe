"""Every name that more than one component must agree on, written once."""

from typing import Final

GROUP: Final = "thermocline.io"
VERSION: Final = "v1alpha1"
KIND: Final = "TieredReplicaSet"
API_VERSION: Final = f"{GROUP}/{VERSION}"

DATABASE: Final = "thermocline"
"""The coordination database, on both tiers; clients never reach it."""

# Collections of the fast tier's coordination database.
COVERAGE: Final = "coverage"
REMOVED: Final = "removed"
MARKERS: Final = "markers"
# Collections of the archive's.
CHECKPOINT: Final = "checkpoint"
TIERED: Final = "tiered"

CHECKPOINT_ID: Final = "feeder"
EPOCH_MARKER_ID: Final = "epoch"

FORMAT_VERSION: Final = 1
"""Written into coordination documents; a service works with this version and the one before."""

SET_ASIDE_DATABASE: Final = "thermocline_aside"
"""Where collections that must not be dropped are renamed to, on either tier."""

ZONE_VARIABLE = "THERMOCLINE_ZONE"
"""In a proxy's environment: its own zone, where no argument gives it."""
