"""The messages of a batch whose sizes differ, found without a Python step for each. Pure.

What looks like the begin of a message with the usual metadata is looked for in the whole batch at once, and
each says where the next one has to be. Payloads may look so too: only those count that the chain from the
first message comes to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from geminga.pipeline.columns.protobuf_columns import Bytes, Ints

_SHORTEST_BYTES = 6
_SIZE_BYTES_MAX = 3
"""Of a payload's size as a number in protobuf, which so ends below 2 MiB."""


class Chain(NamedTuple):
    """Of each message, from the first on: offsets, and the size of its payload."""

    at: Ints
    payload_at: Ints
    payload_bytes: Ints

    @property
    def end(self) -> int:
        return int(self.payload_at[-1] + self.payload_bytes[-1])


def chain(data: Bytes, at: int, end: int, most: int, tag: int) -> Chain | None:
    """Of up to `most` messages of data[at:end], as many as have metadata below 256 bytes that begins with
    `tag` and the payload's size. None: the first has other metadata.
    """
    part = data[at:end]
    places = len(part) - _SHORTEST_BYTES + 1
    if places < 1:
        return None
    zero = part == 0
    looks = zero[:places] & zero[1 : places + 1]
    looks &= zero[2 : places + 2]
    looks &= part[4 : places + 4] == tag
    begins = np.flatnonzero(looks)
    if not len(begins) or begins[0]:
        return None
    head = part[begins + 3].astype(np.int64)
    size, used = _sizes(part, begins + 5)
    payload = begins + 4 + head
    after = payload + size
    good = (used > 0) & (used < head) & (after <= len(part))
    if not good[0]:
        return None
    if good.all() and (after[:-1] == begins[1:]).all():
        chosen: slice | Ints = slice(most)
    else:
        chosen = np.array(_followed(begins, np.where(good, after, -1), most))
    return Chain(begins[chosen] + at, payload[chosen] + at, size[chosen])


def _sizes(part: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """And how many bytes each has; 0: it is longer than `_SIZE_BYTES_MAX` or than `part`."""
    size = np.zeros(len(at), np.int64)
    used = np.zeros(len(at), np.int64)
    rows, offset = np.arange(len(at)), at
    for step in range(_SIZE_BYTES_MAX):
        byte = part[offset]
        size[rows] |= (byte & 0x7F).astype(np.int64) << 7 * step
        ends = byte < 0x80
        used[rows[ends]] = step + 1
        goes_on = ~ends & (offset + 1 < len(part))
        rows, offset = rows[goes_on], offset[goes_on] + 1
        if not len(rows):
            break
    return size, used


def _followed(begins: Ints, after: Ints, most: int) -> list[int]:
    """The numbers of those of `begins` that are reached from the first."""
    next_one = np.searchsorted(begins, after)
    found = begins[np.minimum(next_one, len(begins) - 1)] == after
    is_good = (after >= 0).tolist()
    steps = np.where(found, next_one, -1).tolist()
    reached: list[int] = []
    number = 0
    while number >= 0 and len(reached) < most and is_good[number]:
        reached.append(number)
        number = steps[number]
    return reached
