"""A cursor's acknowledgments as bytes: one entry of its cursor ledger. docs/formats/cursor.md is the page for
people.

All integers are little-endian; bit maps are in Roaring's portable format.

    state   := version u8 (1) | crc u32 | mark_delete_ledger i64 | mark_delete_entry i64
             | ledgers u32 | ledger * ledgers | batches u32 | batch * batches
    ledger  := ledger_id u64 | size_bytes u32 | bitmap
    batch   := ledger_id u64 | entry_id u64 | words u32 | u64 * words

A bit map holds acknowledged entry ids, all after mark-delete. In the words of a batch bit i is set while
message i is *not* acknowledged. Ledgers and batches ascend. A state is complete in itself: only the newest
one counts.

`crc` is CRC-32C over everything after it. It is outside the bit maps because a damaged one may deserialise,
silently, into another set.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c
from pyroaring import BitMap

from geminga.errors import CorruptData

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BI")
_MARK_DELETE: Final = struct.Struct("<qq")
_COUNT: Final = struct.Struct("<I")
_LEDGER: Final = struct.Struct("<QI")
_BATCH: Final = struct.Struct("<QQI")
STATE_BYTES_MIN: Final = _HEAD.size + _MARK_DELETE.size + 2 * _COUNT.size


class CursorState(NamedTuple):
    """What a cursor knows: positions as (ledger, entry), entry ids per ledger, unacknowledged bits per
    batch.
    """

    mark_delete: tuple[int, int]
    acknowledged: Mapping[int, BitMap]
    batches: Mapping[tuple[int, int], int]


class EncodedState(NamedTuple):
    """`left_out` counts ledgers and batches that did not fit: their acknowledgments are not in `data`."""

    data: bytes
    left_out: int


def encode(state: CursorState, bytes_max: int) -> EncodedState:
    """The state in at most `bytes_max` bytes (at least its mark-delete position is always kept).

    What does not fit is left out from the far end: those messages would be delivered again after a crash.
    """
    # Bounded, because a state is written whole and may be written four times a second: a cursor with millions
    # of holes would fill the journal.
    left_bytes = bytes_max - STATE_BYTES_MIN
    ledgers: list[bytes] = []
    # The oldest ledgers first. What is left out is delivered again after a crash, so it should be what would
    # have been delivered last.
    for ledger_id in sorted(state.acknowledged):
        bitmap = state.acknowledged[ledger_id]
        # Changes the live bitmap, in its representation only. Acknowledged entries come in runs, and a run
        # takes four bytes whatever its length.
        bitmap.run_optimize()
        image = bitmap.serialize()
        left_bytes -= _LEDGER.size + len(image)
        if left_bytes < 0:
            break
        ledgers.append(_LEDGER.pack(ledger_id, len(image)) + image)
    batches: list[bytes] = []
    # After the bit maps: of a batch that is left out only some messages are delivered again, of a bit map
    # whole entries.
    for ledger_id, entry_id in sorted(state.batches):
        remaining = state.batches[ledger_id, entry_id]
        words = (remaining.bit_length() + 63) // 64
        left_bytes -= _BATCH.size + 8 * words
        if left_bytes < 0:
            break
        batches.append(_BATCH.pack(ledger_id, entry_id, words) + remaining.to_bytes(8 * words, "little"))
    body = b"".join(
        (
            _MARK_DELETE.pack(*state.mark_delete),
            _COUNT.pack(len(ledgers)),
            *ledgers,
            _COUNT.pack(len(batches)),
            *batches,
        )
    )
    # Counted for the log: the acknowledgements are still valid in memory, and nothing else would tell that
    # they are not on disk.
    left_out = len(state.acknowledged) - len(ledgers) + len(state.batches) - len(batches)
    return EncodedState(_HEAD.pack(VERSION, crc32c(body)) + body, left_out)


def decode(data: bytes) -> CursorState:
    """The state that `encode` was given. CorruptData: they were never a state, or have been damaged."""
    if len(data) < STATE_BYTES_MIN:
        raise CorruptData(f"cursor state of {len(data)} bytes is shorter than the shortest")
    version, crc = _HEAD.unpack_from(data)
    # Before the checksum, whose place and kind belong to the version.
    if version != VERSION:
        raise CorruptData(f"cursor state has version {version}; this release reads version {VERSION}")
    if crc32c(data[_HEAD.size :]) != crc:
        raise CorruptData("cursor state does not match its checksum")
    try:
        return _decode_body(data)
    # With a valid checksum this is a bug of a writer and no damage. The caller treats both alike: it goes
    # back to an older state.
    except (struct.error, ValueError) as error:
        raise CorruptData(f"cursor state does not follow its format: {error}") from error


def _decode_body(data: bytes) -> CursorState:
    at = _HEAD.size
    mark_delete = _MARK_DELETE.unpack_from(data, at)
    at += _MARK_DELETE.size
    acknowledged: dict[int, BitMap] = {}
    (ledgers,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    for _ in range(ledgers):
        ledger_id, size_bytes = _LEDGER.unpack_from(data, at)
        at += _LEDGER.size
        acknowledged[ledger_id] = BitMap.deserialize(_take(data, at, size_bytes))
        at += size_bytes
    batches: dict[tuple[int, int], int] = {}
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    for _ in range(count):
        ledger_id, entry_id, words = _BATCH.unpack_from(data, at)
        at += _BATCH.size
        batches[ledger_id, entry_id] = int.from_bytes(_take(data, at, 8 * words), "little")
        at += 8 * words
    # A length that was too short would otherwise drop acknowledgements without a word.
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes too many")
    return CursorState((mark_delete[0], mark_delete[1]), acknowledged, batches)


def _take(data: bytes, at: int, size_bytes: int) -> bytes:
    part = data[at : at + size_bytes]
    # A slice beyond the end is silently shorter, and a bit map of fewer bytes may be a valid other one.
    if len(part) != size_bytes:
        raise ValueError(f"{size_bytes} bytes wanted at {at}, {len(part)} there")
    return part
