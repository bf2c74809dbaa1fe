"""Monotonic time, injected wherever something measures or waits, so that tests need not sleep."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds that only ever grow; differences mean something, values don't."""

monotonic: Clock = time.monotonic
"""The clock of every running service. Leases and time-outs use it; wall clocks decide nothing."""
