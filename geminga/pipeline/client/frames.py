"""The bytes that a broker sends to one consumer, cut into frames, each MESSAGE's CRC-32C checked.

Frames stay where they were received: what is handed out says where their parts are.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

import numpy as np
from fastcrc.crc32 import iscsi as crc_32c
from google.protobuf.message import DecodeError

from geminga.errors import GemingaError, ProtocolError
from geminga.limits import FRAME_BYTES_MAX, MIB
from geminga.pipeline.columns.protobuf_columns import PADDING_BYTES, Bytes, Ints
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.stored_entry import STAMP_MAGIC
from geminga.wire.varint import scan_varint, varint

BUFFER_BYTES = 8 * MIB
BOUNDS = 7
"""Numbers for each frame: command (inside its envelope), broker's stamp and metadata, each from and to,
then the
end of the payload, which begins where the metadata ends. A stamp that is not there is empty."""

_SIZES = struct.Struct(">II")
_CHECKSUM = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_CHECKSUM_MAGIC = 0x0E01
_MESSAGE_HEAD = b"\x08\x09\x4a"
_MESSAGE = pb.BaseCommand.Type.MESSAGE


class CorruptEntry(GemingaError):
    """An entry whose checksum does not match its bytes, or that ends inside its metadata."""


class Taken(NamedTuple):
    """Whole frames and the buffer they are in, which is overwritten by the next `receive`."""

    data: Bytes
    bounds: Ints
    """(number of MESSAGE frames, BOUNDS)"""


class FrameBuffer:
    """Holds at most what it was made for, or one frame if that is larger."""

    def __init__(
        self,
        buffer_bytes: int = BUFFER_BYTES,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        consumer_id: int | None = None,
    ) -> None:
        """`consumer_id`: MESSAGE frames of others are dropped, as those of one that was closed before."""
        self._consumer_id = consumer_id
        self._consumer_head = b"" if consumer_id is None else b"\x08" + varint(consumer_id)
        self._frame_bytes_max = frame_bytes_max
        self._data = bytearray(buffer_bytes + PADDING_BYTES)
        self._view = memoryview(self._data)
        self._filled = 0
        self._scanned = 0
        self._bounds = array("q")
        self._others: list[bytes] = []
        self.last_position: tuple[int, int] | None = None
        """(ledger id, entry id) of the last whole MESSAGE frame."""
        self.is_corrupt = False
        """The frame behind the whole ones is an entry that `received` refuses once those are given up."""

    @property
    def frames(self) -> int:
        return len(self._bounds) // BOUNDS

    @property
    def frame_bytes(self) -> int:
        """How much the whole frames take."""
        return self._scanned

    @property
    def is_whole(self) -> bool:
        """Nothing is kept of a frame that has not come whole."""
        return self._filled == self._scanned

    def room(self) -> memoryview:
        """Where to receive to; empty when whole frames have to be taken first."""
        end = len(self._data) - PADDING_BYTES
        if self._filled == end and self._scanned == 0:
            self._grow()
            end = len(self._data) - PADDING_BYTES
        return self._view[self._filled : end]

    def received(self, size_bytes: int) -> None:
        """So many bytes were written to the front of `room`. Raises `ProtocolError`, `CorruptEntry`."""
        self._filled += size_bytes
        self._scan()

    def take(self) -> Taken:
        """All whole MESSAGE frames. They are valid until the next `settle`."""
        bounds = np.array(self._bounds, np.int64).reshape(-1, BOUNDS)
        del self._bounds[:]
        return Taken(np.frombuffer(self._data, np.uint8), bounds)

    def take_others(self) -> list[bytes]:
        """The frames of other commands, without their total size. They are copies, so they stay valid."""
        others, self._others = self._others, []
        return others

    def settle(self) -> None:
        """Give up what was taken: the bytes of a frame that is not whole yet move to the front."""
        rest = self._filled - self._scanned
        self._view[:rest] = bytes(self._view[self._scanned : self._filled])
        self._filled, self._scanned = rest, 0

    def _grow(self) -> None:
        (total,) = _U32.unpack_from(self._data, 0)
        old = self._view[: self._filled]
        self._data = bytearray(total + 4 + PADDING_BYTES)
        self._view = memoryview(self._data)
        self._view[: len(old)] = old

    def _scan(self) -> None:
        data, at, filled = self._data, self._scanned, self._filled
        last = -1
        while filled - at >= 8:
            total, command_size = _SIZES.unpack_from(data, at)
            if total > self._frame_bytes_max or command_size > total - 4:
                raise ProtocolError(f"a frame of {total} bytes with a command of {command_size}")
            end = at + 4 + total
            if end > filled:
                break
            command_end = at + 8 + command_size
            command_at = _message_at(data, at + 8, command_end)
            if command_at < 0:
                self._others.append(bytes(self._view[at + 4 : end]))
            elif data.startswith(self._consumer_head, command_at) or self._is_ours(command_at, command_end):
                try:
                    self._add(command_at, command_end, end)
                except CorruptEntry:
                    if not self._bounds:
                        raise
                    self.is_corrupt = True
                    break
                last = command_at
            at = end
        self._scanned = at
        if last >= 0:
            self.last_position = position_of(self._view, *self._bounds[-BOUNDS : 2 - BOUNDS])

    def _is_ours(self, command_at: int, command_end: int) -> bool:
        """Of a command that does not begin with our consumer id."""
        try:
            command = pb.CommandMessage.FromString(bytes(self._view[command_at:command_end]))
        except DecodeError as error:
            raise ProtocolError(f"not a MESSAGE: {error}") from None
        return self._consumer_id is None or command.consumer_id == self._consumer_id

    def _add(self, command_at: int, command_end: int, end: int) -> None:
        data, at = self._data, command_end
        stamp_at = stamp_end = 0
        if data.startswith(STAMP_MAGIC, at) and end - at >= 6:
            stamp_at = at + 6
            at = stamp_end = stamp_at + _U32.unpack_from(data, at + 2)[0]
        if end - at >= 10:
            magic, checksum = _CHECKSUM.unpack_from(data, at)
            if magic == _CHECKSUM_MAGIC:
                at += 6
                if crc_32c(self._view[at:end]) != checksum:
                    ledger_id, entry_id = position_of(self._view, command_at, command_end)
                    raise CorruptEntry(f"entry {ledger_id}:{entry_id}: its checksum does not match its bytes")
        metadata_end = at + 4 + (_U32.unpack_from(data, at)[0] if end - at >= 4 else end)
        if metadata_end > end:
            ledger_id, entry_id = position_of(self._view, command_at, command_end)
            raise CorruptEntry(f"entry {ledger_id}:{entry_id}: it ends inside its metadata")
        self._bounds.extend((command_at, command_end, stamp_at, stamp_end, at + 4, metadata_end, end))


def position_of(data: memoryview, command_at: int, command_end: int) -> tuple[int, int]:
    """(ledger id, entry id) of the MESSAGE whose command is data[command_at:command_end].

    Raises `ProtocolError`.
    """
    try:
        message_id = pb.CommandMessage.FromString(bytes(data[command_at:command_end])).message_id
    except DecodeError as error:
        raise ProtocolError(f"not a MESSAGE: {error}") from None
    return message_id.ledgerId, message_id.entryId


def _message_at(data: bytearray, at: int, end: int) -> int:
    """Where the CommandMessage is inside the envelope data[at:end]; -1: it is another command."""
    if data.startswith(_MESSAGE_HEAD, at):
        size, start = scan_varint(data, at + 3)  # type: ignore[arg-type]
        if start + size == end:
            return start
    try:
        envelope = pb.BaseCommand.FromString(bytes(data[at:end]))
    except DecodeError as error:
        raise ProtocolError(f"not a command: {error}") from None
    if envelope.type != _MESSAGE:
        return -1
    raise ProtocolError("a MESSAGE in an unusual envelope")
