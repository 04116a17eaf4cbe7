"""Messages larger than the broker takes: cut into chunks, an entry each, and put together again. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PENDING_MAX = 10
"""Messages that lack chunks, of one consumer; as in the Java client."""
PENDING_BYTES_MAX = 256 * 1024 * 1024

Position = tuple[int, int]


class Chunk(NamedTuple):
    number: int
    of: int
    part: bytes


def cut(payload: bytes, chunk_bytes: int) -> Iterator[Chunk]:
    """At least one chunk, none larger than `chunk_bytes`."""
    count = max(1, -(-len(payload) // chunk_bytes))
    for number in range(count):
        yield Chunk(number, count, payload[number * chunk_bytes : (number + 1) * chunk_bytes])


class _Pending:
    __slots__ = ("count", "parts", "positions")

    def __init__(self, count: int) -> None:
        self.count = count
        self.parts: list[bytes] = []
        self.positions: list[Position] = []


class Whole(NamedTuple):
    payload: bytes
    positions: tuple[Position, ...]
    """Of all its chunks, in their order."""


class Assembly:
    """The messages of one consumer whose chunks have not all come. Those that began first make room."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._pending: dict[str, _Pending] = {}
        self._pending_max = pending_max
        self._bytes = 0

    def add(self, uuid: str, chunk: Chunk, position: Position) -> Whole | None:
        """The whole message with its last chunk. None: it is not complete, or this chunk is one whose
        predecessor never came.
        """
        if chunk.number == 0:
            self._forget(uuid)
            self._pending[uuid] = _Pending(chunk.of)
        pending = self._pending.get(uuid)
        if pending is None or chunk.number != len(pending.parts):
            return None
        pending.parts.append(chunk.part)
        pending.positions.append(position)
        self._bytes += len(chunk.part)
        if len(pending.parts) >= pending.count:
            whole = Whole(b"".join(pending.parts), tuple(pending.positions))
            self._forget(uuid)
            return whole
        while len(self._pending) > self._pending_max or self._bytes > PENDING_BYTES_MAX:
            self._forget(next(iter(self._pending)))
        return None

    def _forget(self, uuid: str) -> None:
        pending = self._pending.pop(uuid, None)
        if pending is not None:
            self._bytes -= sum(map(len, pending.parts))
