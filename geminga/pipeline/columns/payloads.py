"""From entries to plain payloads: chunks put together, then whatever is compressed inflated."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from geminga.errors import GemingaError
from geminga.limits import MIB
from geminga.pipeline.columns.batches import Payload
from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.protobuf_columns import PADDING_BYTES, Bytes
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.varint import scan_varint

INFLATED_AT_ONCE_BYTES = 64 * MIB
"""What the entries that are decoded together may grow to, unless it is a single one."""
INFLATED_BYTES_MAX = 512 * MIB
"""What one entry or chunked message may grow to."""
CHUNKED_BYTES_MAX = 1024 * MIB
"""What all chunked messages that are not whole yet may take: beyond it the oldest are dropped."""
_DROPPED_MAX = 100_000
_PARTIAL_BYTES, _PART_BYTES = 512, 64
"""What one takes, and each of its chunks, beside the payload."""
_VARINT_BYTES_MAX = 10


class BadPayload(GemingaError):
    """A payload that cannot be inflated; the text names the entry."""


Inflate = Callable[[bytes, int], bytes]


_LZ4, _ZSTD, _SNAPPY = pa.Codec("lz4_raw"), pa.Codec("zstd"), pa.Codec("snappy")


def _lz4(payload: bytes, size_bytes: int) -> bytes:
    """A block does not say how long it is, and Arrow does not say how much of its buffer was written: that it
    is all of it shows in that one byte less does not do.
    """
    found = bytes(_LZ4.decompress(payload, size_bytes, asbytes=True))
    if size_bytes > 0:
        try:
            _LZ4.decompress(payload, size_bytes - 1)
        except OSError:
            return found
        raise OSError(f"less than {size_bytes} bytes")
    return found


def _zlib(payload: bytes, size_bytes: int) -> bytes:
    return zlib.decompressobj().decompress(payload, size_bytes + 1)


def _zstd(payload: bytes, size_bytes: int) -> bytes:
    return bytes(_ZSTD.decompress(payload, size_bytes, asbytes=True))


def _snappy(payload: bytes, size_bytes: int) -> bytes:
    """Checks the stated size: for a block that is shorter Arrow returns uninitialized memory."""
    if payload:
        stated, _ = scan_varint(payload[:_VARINT_BYTES_MAX] + b"\0", 0)
        if stated != size_bytes:
            raise OSError(f"{stated} bytes")
    return bytes(_SNAPPY.decompress(payload, size_bytes, asbytes=True))


_INFLATE: dict[int, Inflate] = {pb.LZ4: _lz4, pb.ZLIB: _zlib, pb.ZSTD: _zstd, pb.SNAPPY: _snappy}


def inflate(compression: int, payload: bytes, size_bytes: int, entry: str) -> bytes:
    """`size_bytes` as the metadata says. Raises `BadPayload`."""
    method = _INFLATE.get(compression)
    if method is None:
        raise BadPayload(f"entry {entry}: compressed in a way that is not known here ({compression})")
    if not 0 <= size_bytes <= INFLATED_BYTES_MAX:
        raise BadPayload(f"entry {entry}: says that it is {size_bytes} bytes long once inflated")
    try:
        found = method(payload, size_bytes)
    except (OSError, zlib.error, pa.ArrowException) as error:
        raise BadPayload(f"entry {entry}: cannot be inflated: {error}") from None
    if len(found) != size_bytes:
        raise BadPayload(f"entry {entry}: {len(found)} bytes once inflated, not {size_bytes}")
    return found


class ChunksDropped(UserWarning):
    """A chunked message that was never completed, as far as was read, had to make room."""


@dataclass
class _Partial:
    chunks: int
    parts: list[bytes] = field(default_factory=list)
    size_bytes: int = _PARTIAL_BYTES

    @property
    def next_chunk(self) -> int:
        return len(self.parts)


class ChunkedMessages:
    """Chunked messages that are not whole yet, by uuid, the oldest first.

    A message belongs where its last chunk is. A chunk whose predecessors are not known is dropped. Beyond
    `CHUNKED_BYTES_MAX` those that began first are dropped, as Java's consumer does with its oldest.
    """

    def __init__(self) -> None:
        self._partial: dict[bytes, _Partial] = {}
        self._bytes = 0
        self.dropped: set[bytes] = set()
        """Which had to make room; at most `_DROPPED_MAX` of them."""

    def knows(self, uuid: bytes) -> bool:
        return uuid in self._partial

    def add(self, uuid: bytes, chunk_id: int, chunks: int, payload: bytes) -> bytes | None:
        """The whole (still compressed) payload once its last chunk is here. A chunk sent twice counts
        once. Warns `ChunksDropped` of the first that is dropped.
        """
        if chunk_id == 0:
            self._drop(uuid)
            self._partial[uuid] = _Partial(chunks)
            self._bytes += _PARTIAL_BYTES
        partial = self._partial.get(uuid)
        if partial is None or chunk_id < partial.next_chunk:
            return None
        if chunk_id > partial.next_chunk:
            self._drop(uuid)
            return None
        partial.parts.append(payload)
        size_bytes = len(payload) + _PART_BYTES
        partial.size_bytes += size_bytes
        self._bytes += size_bytes
        if partial.next_chunk >= partial.chunks:
            self._drop(uuid)
            return b"".join(partial.parts)
        self._make_room()
        return None

    def adopt(self, other: ChunkedMessages, uuids: Collection[bytes]) -> None:
        """Take over what `other` knows of these messages; they began before all that is known here."""
        taken = {uuid: one for uuid, one in other._partial.items() if uuid in uuids}
        for uuid in taken:
            self._drop(uuid)
        self._partial = taken | self._partial
        self._bytes += sum(one.size_bytes for one in taken.values())
        self._make_room()

    def _make_room(self) -> None:
        while self._bytes > CHUNKED_BYTES_MAX:
            uuid, oldest = next(iter(self._partial.items()))
            if not self.dropped:
                warnings.warn(
                    "a chunked message was dropped, and more may be: those that are not whole yet take more "
                    f"than {CHUNKED_BYTES_MAX >> 20} MiB, and this one began first (uuid "
                    f"{uuid.decode(errors='replace')}, {oldest.next_chunk} of {oldest.chunks} chunks read)",
                    ChunksDropped,
                    stacklevel=2,
                )
            self._drop(uuid)
            if len(self.dropped) < _DROPPED_MAX:
                self.dropped.add(uuid)

    def _drop(self, uuid: bytes) -> None:
        partial = self._partial.pop(uuid, None)
        if partial is not None:
            self._bytes -= partial.size_bytes


def portions(entries: Entries) -> Iterator[Entries]:
    """The entries in order, so many at a time that their payloads fit into memory once they are inflated."""
    # What an entry says may be anything; no more than this is inflated of it.
    sizes = np.where(entries.compression != 0, np.clip(entries.uncompressed_bytes, 0, INFLATED_BYTES_MAX), 0)
    if sizes.sum() <= INFLATED_AT_ONCE_BYTES:
        yield entries
        return
    first = total = 0
    for row, size in enumerate(sizes.tolist()):
        if total + size > INFLATED_AT_ONCE_BYTES and row > first:
            yield entries.select(np.arange(first, row))
            first, total = row, 0
        total += size
    yield entries.select(np.arange(first, len(entries)))


def plain_payloads(entries: Entries, chunked: ChunkedMessages) -> Payload:
    """Of all entries that hold messages: markers and chunks but the last are left out.

    None of them may be encrypted. Raises `BadPayload` and `ProtocolError`.
    """
    assert not entries.encrypted.any()
    is_plain = (entries.compression == 0) & (entries.chunk_id < 0)
    kept = ~entries.marker
    if (is_plain | ~kept).all():
        rows = np.flatnonzero(kept)
        return Payload(entries.data, rows, entries.payload_at[rows], entries.payload_end[rows])
    raw = memoryview(entries.data.data).cast("B")
    end_of_frames = int(entries.payload_end.max())
    parts: list[bytes | memoryview] = [raw[:end_of_frames]]
    rows_kept, ends = [], []
    end = end_of_frames
    for row in np.flatnonzero(kept).tolist():
        payload: bytes | memoryview | None = raw[entries.payload_at[row] : entries.payload_end[row]]
        if not is_plain[row]:
            payload = _one(entries, row, bytes(payload or b""), chunked)
            if payload is None:
                continue
        assert payload is not None
        parts.append(payload)
        end += len(payload)
        rows_kept.append(row)
        ends.append(end)
    parts.append(bytes(PADDING_BYTES))
    at = np.array([end_of_frames, *ends], np.int64)
    data: Bytes = np.frombuffer(b"".join(parts), np.uint8)
    return Payload(data, np.array(rows_kept, np.int64), at[:-1], at[1:])


def _one(entries: Entries, row: int, payload: bytes, chunked: ChunkedMessages) -> bytes | None:
    compression, size_bytes = int(entries.compression[row]), int(entries.uncompressed_bytes[row])
    if entries.chunk_id[row] >= 0:
        whole = chunked.add(
            entries.uuid_of(row), int(entries.chunk_id[row]), int(entries.chunks[row]), payload
        )
        if whole is None:
            return None
        payload = whole
    if compression == 0:
        return payload
    return inflate(compression, payload, size_bytes, entry_text(entries, row))


def entry_text(entries: Entries, row: int) -> str:
    return f"{entries.ledger_id[row]}:{entries.entry_id[row]}"
