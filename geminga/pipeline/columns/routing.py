"""Which partition of a topic a message goes to. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.wire.sticky_hash import sticky_hash

_INT32 = 1 << 32


def java_string_hash(text: str) -> int:
    """`String.hashCode`, made positive: what the Java client routes keys by (its default hashing scheme)."""
    found = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8 | units[at + 1])) % _INT32
    return found & 0x7FFFFFFF


def by_key(keys: pa.BinaryArray, partitions: int, hashing: str = "java") -> Ints:
    """The partition of each key; -1 where there is none. `hashing` may be "murmur3", as other clients do."""
    encoded = keys.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    if hashing == "murmur3":
        hashes = [sticky_hash(key) % partitions for key in known]
    else:
        hashes = [java_string_hash(key.decode(errors="replace")) % partitions for key in known]
    found = np.full(len(keys), -1, np.int64)
    present = ~np.asarray(keys.is_null())
    found[present] = np.array(hashes, np.int64)[np.asarray(encoded.indices.drop_null(), np.int64)]
    return found


def in_turn(first_row: int, rows: int, block_rows: int, partitions: int, offset: int) -> Ints:
    """Partition of each row: blocks of consecutive rows take turns, the first goes to partition `offset`.
    Depends on row numbers only, so a task that is retried sends its rows to the same partitions.
    """
    return ((np.arange(first_row, first_row + rows) // block_rows) + offset) % partitions
