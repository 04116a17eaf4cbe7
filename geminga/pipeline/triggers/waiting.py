"""Whether a micro-batch waits for more rows, and how long at most; how soon brokers are asked again. Pure."""

from __future__ import annotations

DEFAULT_DELAY_S = 15 * 60.0
"""What Kafka's source waits at most."""
REST_SHARE = 9
"""How much longer brokers rest than they were asked."""
REST_S_MAX = 1.0


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


class Rest:
    """Holds triggers back that follow each other closely and find nothing: Spark's default trigger would ask
    brokers about all partitions without a break.
    """

    def __init__(self) -> None:
        self._until_s = 0.0

    def asked(self, begun_s: float, ended_s: float, *, found: bool) -> None:
        """Brokers were asked in this time, and there was something new or not."""
        rest_s = 0.0 if found else min(REST_SHARE * (ended_s - begun_s), REST_S_MAX)
        self._until_s = ended_s + rest_s

    def left_s(self, now_s: float) -> float:
        return max(self._until_s - now_s, 0.0)
