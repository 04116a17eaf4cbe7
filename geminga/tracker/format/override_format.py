"""Due times that were changed after the fact, as one entry. docs/formats/bucket.md is the page for people.

    overrides := count u32 | (ledger << 32 | entry) i64 * count | due time i64 * count

A time of -1 takes an earlier change back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from geminga.tracker.format.bucket_format import OVERRIDES, checked, framed, layout_of, unframed

_COUNT: Final = struct.Struct("<I")
# Changes are kept in memory beside the buckets and written as a whole; more of them should be a new bucket.
OVERRIDES_MAX: Final = 100_000
"""In one entry, and in all."""


def encode_overrides(times_ms: Mapping[int, int]) -> bytes:
    """Due times by code."""
    assert len(times_ms) <= OVERRIDES_MAX
    return framed(
        OVERRIDES,
        # Two columns rather than pairs: one call of `struct` for each, with no loop in Python.
        _COUNT.pack(len(times_ms)) + struct.pack(f"<{2 * len(times_ms)}q", *times_ms, *times_ms.values()),
    )


def decode_overrides(entry: bytes) -> dict[int, int]:
    """CorruptData."""
    return checked("an entry of changed due times", lambda: _overrides(entry))


def _overrides(entry: bytes) -> dict[int, int]:
    version, body = unframed(entry, OVERRIDES)
    return layout_of(version, LAYOUTS)(body)


def _decode(body: bytes) -> dict[int, int]:
    (count,) = _COUNT.unpack_from(body)
    # Compared before unpacking, so that a damaged count cannot make the reader allocate by it.
    if len(body) != _COUNT.size + 16 * count:
        raise ValueError(f"{len(body)} bytes for {count} due times")
    numbers = struct.unpack_from(f"<{2 * count}q", body, _COUNT.size)
    return dict(zip(numbers[:count], numbers[count:], strict=True))


LAYOUTS: Final[dict[int, Callable[[bytes], dict[int, int]]]] = {1: _decode}
"""By version, the same ones as `bucket_format.LAYOUTS`."""
