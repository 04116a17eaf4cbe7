"""What a subscription has acknowledged of one ledger, where positions are entries: a batch is settled when
all of its messages are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from geminga.pipeline.audit.packing import CODE_BITS, CODE_MASK, begins_of, bitmap

Integers = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)


def packed_messages(codes: Integers, indexes: Integers, sizes: Integers) -> tuple[bytes, int]:
    """Messages of batches that were acknowledged one by one, each once: their entries' codes (below 2**32),
    indexes and the batches' sizes, 0 where that is not known; and how many they are.
    """
    messages, first = np.unique(codes << CODE_BITS | indexes, return_index=True)
    return np.concatenate([messages, sizes[first]]).astype("<i8").tobytes(), len(messages)


class Acknowledged:
    """Grows with each acknowledgement, in any order. What it keeps beside bitmaps are the acknowledged
    messages of batches that are not settled.
    """

    def __init__(self) -> None:
        self.entries = BitMap()
        """Those that are settled."""
        self._messages = _NONE
        self._sizes = _NONE

    def add(self, entries: BitMap) -> None:
        """Acknowledged as a whole."""
        self.entries |= entries
        if len(self._messages):
            self._settle()

    def add_messages(self, data: bytes) -> None:
        """What `packed_messages` made. A batch whose size no event says is not settled by its messages."""
        messages, sizes = np.frombuffer(data, "<i8").reshape(2, -1)
        both, first = np.unique(np.concatenate([self._messages, messages]), return_index=True)
        self._messages, self._sizes = both, np.concatenate([self._sizes, sizes])[first]
        self._settle()

    def _settle(self) -> None:
        codes = self._messages >> CODE_BITS
        begins = begins_of(codes)
        counts = np.diff(np.append(begins, len(codes)))
        sizes = np.maximum.reduceat(self._sizes, begins)
        whole = (sizes > 0) & (counts >= sizes)
        self.entries |= bitmap((codes[begins][whole] & CODE_MASK).astype(np.uint32))
        settled = np.array([code in self.entries for code in codes[begins].tolist()])
        left = ~np.repeat(settled, counts)
        self._messages, self._sizes = self._messages[left], self._sizes[left]
