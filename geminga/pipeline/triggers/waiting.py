"""Whether a micro-batch waits for more rows, and how long at most. Pure."""

from __future__ import annotations

import re

from geminga.pipeline.errors import BadOption

DEFAULT_DELAY_S = 15 * 60.0
"""What Kafka's source waits at most."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d+)\s*([a-z]*)")


def delay_s(given: str) -> float:
    """Seconds of a text such as 500ms, 30s, 15m or 1h. Raises `BadOption`."""
    match = _TEXT.fullmatch(given.strip().lower())
    if match is None or match[2] not in _UNITS_S:
        raise BadOption(f"option maxTriggerDelay is {given!r}; expected a time such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_S[match[2]]


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
