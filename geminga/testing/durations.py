"""Lengths of time as tests write them."""

from __future__ import annotations

import datetime
import re
from typing import Final

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")


def duration_ms(length: str | float | datetime.timedelta) -> int:
    """`"30d"`, `"1h30m"`, a `timedelta`, or seconds. Raises ValueError."""
    if isinstance(length, datetime.timedelta):
        return round(length.total_seconds() * 1000)
    if isinstance(length, int | float):
        return round(length * 1000)
    parts = _PART.findall(length)
    if not parts or _PART.sub("", length):
        raise ValueError(f"expected a length of time such as '250ms', '2s', '1h30m' or '30d', not {length!r}")
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
