"""When operations are due: latency counts from there, whether or not a connection was free to send them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """``rate`` operations a second of all ``processes`` together; this is number ``process`` of them."""

    rate: float
    process: int
    processes: int

    def due(self, turn: int) -> float:
        """Seconds from the start until this process's operation number ``turn`` (from 0)."""
        return (turn * self.processes + self.process) / self.rate

    def until(self, seconds: float) -> int:
        """How many of this process's operations are due before ``seconds``."""
        whole = max(0.0, seconds * self.rate - self.process)
        turns = int(whole // self.processes)
        return turns + (1 if self.due(turns) < seconds else 0)
