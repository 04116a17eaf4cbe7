"""Whether a micro-batch waits for more rows, and how long at most. Pure."""

from __future__ import annotations

DEFAULT_DELAY_S = 15 * 60.0
"""What Kafka's source waits at most."""


class Waiting:
    """Holds micro-batches back until so many rows wait, or the last one is so long ago."""

    def __init__(self, rows_min: int, delay_max_s: float, now_s: float) -> None:
        self._rows_min = rows_min
        self._delay_max_s = delay_max_s
        self._since_s = now_s

    def is_over(self, rows: float, now_s: float) -> bool:
        """True if a micro-batch should begin now, with so many rows unread; the delay starts again then."""
        if rows < self._rows_min and now_s - self._since_s < self._delay_max_s:
            return False
        self._since_s = now_s
        return True
