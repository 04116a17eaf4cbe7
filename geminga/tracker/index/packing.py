"""Rows that stay in memory, packed: a bucket without a ledger."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from geminga.tracker.format.packed_rows import pack_rows, unpack_rows
from geminga.tracker.format.rows import ENTRY_BITS, Rows
from geminga.tracker.index.sources import Bucket

SEGMENT_ROWS_MAX: Final = 5_000
# A constant delay takes some hundredths of a byte for each row, a random one two and more: between the two
# there is little.
REGULAR_BYTES_PER_ROW: Final = 0.1


def pack(rows: Rows) -> Bucket:
    """Sorted rows, each code once. About 1 ms for 50,000."""
    first, last = int(rows.codes.min()) >> ENTRY_BITS, int(rows.codes.max()) >> ENTRY_BITS
    starts = [*range(0, rows.length, SEGMENT_ROWS_MAX), rows.length]
    encoded = [pack_rows(rows.part(starts[0], starts[1]))]
    if len(encoded[0]) <= REGULAR_BYTES_PER_ROW * starts[1]:
        # So regular that ten segments would cost several times what one does.
        whole = pack_rows(rows)
        if len(whole) <= REGULAR_BYTES_PER_ROW * rows.length:
            starts, encoded = [0, rows.length], [whole]
    encoded += [pack_rows(rows.part(start, end)) for start, end in list(pairwise(starts))[len(encoded) :]]
    times_ms = rows.times_ms
    columns = (
        times_ms[starts[:-1]].tolist(),
        times_ms[np.array(starts[1:]) - 1].tolist(),
        [end - start for start, end in pairwise(starts)],
        [len(data) for data in encoded],
    )
    # The class that serves buckets on disk: a second one for memory would have to keep the same order.
    bucket = Bucket(first, last, columns, lambda _, data: unpack_rows(data), None)
    for number, data in enumerate(encoded):
        bucket.load(number, data)
    return bucket
