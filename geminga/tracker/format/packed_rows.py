"""Sorted rows in few bytes that stay in memory: coded in nanoseconds a row, in the order in which they are
taken. Pure. (`bucket_format.py` is the form on disk: smaller where times differ by the millisecond, checked,
and several times slower.)

    packed := rows u32 | kind of times u8 | kind of codes u8 | first time i64 | first code i64
            | times | codes

Each column is coded as the steps from one number to the next: as runs of the same step where there are few of
these, else each in 8, 16 or 32 bits, with the steps that do not fit apart. Runs and steps apart are written
with their length or place in 16 bits (32 where there are more rows), and the step in 32 (or 64).
"""

from __future__ import annotations

import struct
from typing import Final

# Not `bucket_format`'s columns: rows in memory are unpacked when they fall due, on the loop, and inflating
# them takes several times as long.
import numpy as np
from numpy.typing import NDArray

from geminga.tracker.format.rows import Integers, Rows

_HEAD: Final = struct.Struct("<IBBqq")
_COUNT: Final = struct.Struct("<I")
_RUNS: Final = 0
_WIDE: Final = 0x10
"""Added to the kind: the steps that are written whole take 8 bytes each, not 4."""
_SHORT_END: Final = 1 << 16
_INT_END: Final = 1 << 31


def pack_rows(rows: Rows) -> bytes:
    """At least one row, sorted."""
    # Steps instead of values: due times of neighbours differ by milliseconds, so that most fit into a byte.
    times = _pack(rows.times_ms[1:] - rows.times_ms[:-1])
    codes = _pack(rows.codes[1:] - rows.codes[:-1])
    first = rows.times_ms.item(0), rows.codes.item(0)
    return b"".join((_HEAD.pack(rows.length, times[0], codes[0], *first), times[1], codes[1]))


def _pack(steps: Integers) -> tuple[int, bytes]:
    """Kind and bytes. Kind 0 is runs, else the bytes of a step."""
    count = len(steps)
    is_change = steps[1:] != steps[:-1]
    low, high = (int(steps.min()), int(steps.max())) if count else (0, 0)
    # A single far step (another ledger, a message due next year) would otherwise widen all steps of the
    # column.
    wide = 0 if max(-low, high) < _INT_END else _WIDE
    whole_bytes = (8 if wide else 4) + (2 if count < _SHORT_END else 4)
    # Sizes are computed, not tried: packing in each form to compare would cost several times as much.
    sizes = {_RUNS: whole_bytes * (int(np.count_nonzero(is_change)) + 1)}
    for width in (1, 2, 4):
        apart = int(np.count_nonzero(_apart(steps, width))) if low < 0 or high >> 8 * width else 0
        sizes[width] = count * width + whole_bytes * apart
        # Wider ones cannot be smaller once every step fits.
        if not apart:
            break
    kind = min(sizes, key=lambda kind: sizes[kind])
    if kind == _RUNS:
        # Consecutive entries published at a steady pace with a constant delay are a single run.
        starts = np.concatenate(([0], np.flatnonzero(is_change) + 1))[:count]
        lengths = np.diff(starts, append=count)
        return kind | wide, _pack_whole(lengths, steps[starts], count, wide)
    where = np.flatnonzero(_apart(steps, kind))
    return kind | wide, _pack_whole(where, steps[where], count, wide) + steps.astype(f"<u{kind}").tobytes()


def _apart(steps: Integers, width: int) -> NDArray[np.bool_]:
    """Which steps do not fit into that many bytes: those below 0 as well, which are large without a sign."""
    # Seen without a sign a negative step is huge, so one comparison finds both kinds that do not fit.
    apart: NDArray[np.bool_] = steps.view(np.uint64) >= 1 << 8 * width
    return apart


def _pack_whole(places: Integers, steps: Integers, count: int, wide: int) -> bytes:
    written = places.astype(_place_type(count)).tobytes() + steps.astype(_step_type(wide)).tobytes()
    return _COUNT.pack(len(places)) + written


def _place_type(count: int) -> str:
    return "<u2" if count < _SHORT_END else "<u4"


def _step_type(wide: int) -> str:
    return "<i8" if wide else "<i4"


def unpack_rows(packed: bytes) -> Rows:
    count, times_kind, codes_kind, first_ms, first_code = _HEAD.unpack_from(packed)
    times_ms, at = _unpack(packed, _HEAD.size, times_kind, count, first_ms)
    codes, _ = _unpack(packed, at, codes_kind, count, first_code)
    return Rows(times_ms, codes)


def _unpack(packed: bytes, at: int, kind: int, count: int, first: int) -> tuple[Integers, int]:
    wide, width = kind & _WIDE, kind & ~_WIDE
    (special,) = _COUNT.unpack_from(packed, at)
    at += _COUNT.size
    places = np.frombuffer(packed, _place_type(count - 1), special, at)
    at += places.nbytes
    whole = np.frombuffer(packed, _step_type(wide), special, at)
    at += whole.nbytes
    numbers = np.empty(count, np.int64)
    numbers[0] = first
    if width == _RUNS:
        numbers[1:] = np.repeat(whole, places)
    else:
        steps = np.frombuffer(packed, f"<u{width}", count - 1, at)
        at += steps.nbytes
        numbers[1:] = steps
        # The whole steps replace what their low bytes have put there.
        numbers[1:][places] = whole
    # In place: a second array of the same length would double what unpacking takes from the memory budget.
    np.cumsum(numbers, out=numbers)
    return numbers, at
