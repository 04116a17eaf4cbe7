"""Sorted rows in few bytes that stay in memory: coded in nanoseconds a row, in the order in which they are
taken. Pure. (`bucket_format.py` is the form on disk: smaller where times differ by the millisecond, checked,
and several times slower.)

    packed := rows u32 | kind of times u8 | kind of codes u8 | first time i64 | first code i64
            | times | codes

Each column is coded as the steps from one number to the next: as runs of the same step where there are few of
these, else each in 8, 16 or 32 bits, with the steps that do not fit apart.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from geminga.tracker.rows import Integers, Rows

_HEAD: Final = struct.Struct("<IBBqq")
_RUNS: Final = 0
_COUNT: Final = struct.Struct("<I")
RUN_BYTES: Final = 12
"""A run of steps: how long it is, and the step."""
APART_BYTES: Final = 12
"""A step that stands apart: where, and the step."""
_WIDTHS: Final = (np.uint8, np.uint16, np.uint32)


def pack_rows(rows: Rows) -> bytes:
    """At least one row, sorted; a code may occur twice only if one does not follow the other."""
    times = _pack(np.diff(rows.times_ms))
    codes = _pack(np.diff(rows.codes))
    first = rows.times_ms.item(0), rows.codes.item(0)
    return b"".join((_HEAD.pack(rows.length, times[0], codes[0], *first), times[1], codes[1]))


def _pack(steps: Integers) -> tuple[int, bytes]:
    """Kind and bytes. Kind 0 is runs, else the bytes of a step."""
    count = len(steps)
    changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    sizes = {_RUNS: RUN_BYTES * (len(changes) + 1)}
    lowest = int(steps.min()) if count else 0
    for width in _WIDTHS:
        top = int(np.iinfo(width).max)
        apart = int(((steps < 0) | (steps > top)).sum()) if lowest < 0 else int((steps > top).sum())
        sizes[np.dtype(width).itemsize] = count * np.dtype(width).itemsize + APART_BYTES * apart
    kind = min(sizes, key=lambda kind: sizes[kind])
    if kind == _RUNS:
        starts = np.concatenate(([0], changes))[:count]
        lengths = np.diff(starts, append=count)
        return kind, _COUNT.pack(len(starts)) + lengths.astype(np.uint32).tobytes() + steps[starts].tobytes()
    top = (1 << 8 * kind) - 1
    where = np.flatnonzero((steps < 0) | (steps > top))
    apart_bytes = where.astype(np.uint32).tobytes() + steps[where].tobytes()
    return kind, _COUNT.pack(len(where)) + apart_bytes + steps.astype(f"<u{kind}").tobytes()


def unpack_rows(packed: bytes) -> Rows:
    count, times_kind, codes_kind, first_ms, first_code = _HEAD.unpack_from(packed)
    times_ms, at = _unpack(packed, _HEAD.size, times_kind, count, first_ms)
    codes, _ = _unpack(packed, at, codes_kind, count, first_code)
    return Rows(times_ms, codes)


def _unpack(packed: bytes, at: int, kind: int, count: int, first: int) -> tuple[Integers, int]:
    (special,) = _COUNT.unpack_from(packed, at)
    at += _COUNT.size
    places = np.frombuffer(packed, np.uint32, special, at)
    at += places.nbytes
    values = np.frombuffer(packed, np.int64, special, at)
    at += values.nbytes
    numbers = np.empty(count, np.int64)
    numbers[0] = first
    if kind == _RUNS:
        numbers[1:] = np.repeat(values, places)
    else:
        steps = np.frombuffer(packed, f"<u{kind}", count - 1, at)
        at += steps.nbytes
        numbers[1:] = steps
        numbers[1:][places] = values
    np.cumsum(numbers, out=numbers)
    return numbers, at
