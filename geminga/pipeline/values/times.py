"""Times of values as the microseconds of a column. Pure.

Spark and Arrow hold 64 bits of microseconds, which end in the year 294247. An AVRO `timestamp-millis` and the
schemas TIMESTAMP and INSTANT can say more: Java programs write `Long.MAX_VALUE` for "never".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from geminga.pipeline.errors import Option
from geminga.pipeline.values.avro_shapes import BadValue
from geminga.pipeline.values.rules import OutOfRange

_US_MAX: Final = 2**63 - 1
_US_MIN: Final = -(2**63)


def microseconds(values: Any, unit_us: int, out_of_range: OutOfRange, mask: Any = None) -> pa.Int64Array:
    """Whole numbers of a unit, as int64; `mask` is set where one is null. Raises `BadValue`."""
    greatest, least = _US_MAX // unit_us, -(_US_MAX // unit_us)
    beyond = (values > greatest) | (values < least)
    if unit_us > 1 and beyond.any():
        if out_of_range == "error":
            raise _beyond(int(values[beyond][0]), unit_us)
        if out_of_range == "null":
            mask = beyond if mask is None else mask | beyond
        values = np.clip(values, least, greatest)
    return pa.array(values * unit_us, pa.int64(), mask=mask)


def one_in_microseconds(value: int, unit_us: int, out_of_range: OutOfRange) -> int | None:
    """As `microseconds`, of one."""
    us = value * unit_us
    if _US_MIN <= us <= _US_MAX:
        return us
    if out_of_range == "error":
        raise _beyond(value, unit_us)
    if out_of_range == "null":
        return None
    return (_US_MAX // unit_us if us > 0 else -(_US_MAX // unit_us)) * unit_us


def _beyond(value: int, unit_us: int) -> BadValue:
    unit = {1: "microseconds", 1000: "milliseconds", 1_000_000: "seconds"}.get(unit_us, "days")
    return BadValue(
        f"a time of {value} {unit} since 1970 is beyond what a timestamp holds (",
        Option("outOfRangeTimes"),
        " is error)",
    )
