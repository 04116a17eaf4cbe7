"""Decodes bytes from a socket to commands. No I/O: `Decoder.feed` is plain code for any bytes.

SEND, ACK and FLOW are most of the traffic, so their usual shape is read here straight from the buffer,
without protobuf. "Usual" is what the clients' encoders emit: the fields in ascending order, each once, none
unknown, varints of ordinary length, nothing after them. Any other shape goes through protobuf, with an equal
result: docs/formats/wire.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from fastcrc.crc32 import iscsi as crc_32c

from geminga.errors import ProtocolError
from geminga.limits import FRAME_BYTES_MAX
from geminga.loops import native
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import (
    Ack,
    BadFrame,
    Command,
    Delivery,
    Flow,
    Send,
    Sends,
    UnknownCommand,
    request_id_of,
)
from geminga.wire.parse import LONG_ACK_BYTES, MAGIC_CHECKSUM, parse_command
from geminga.wire.scan_ack import scan_ack
from geminga.wire.varint import scan_varint

__all__ = [
    "Ack",
    "BadFrame",
    "Command",
    "Decoder",
    "Delivery",
    "Flow",
    "Send",
    "Sends",
    "UnknownCommand",
    "request_id_of",
]

# total size, command size, then the first seven bytes of the usual hot command:
#   08 type | tag of the sub-message | its size || 08 | producer or consumer id || tag of the second field
# One unpack for all that decides which scanner fits: each further call costs as much as the scanner itself.
_HEAD = struct.Struct(">IIIHB")
_HEAD_BYTES = _HEAD.size
_SIZES = struct.Struct(">II")
_CHECKSUM_AND_SIZE = struct.Struct(">HII")
_U32 = struct.Struct(">I")

# `head - command_size` where the sub-message ends with the command and has a size of one byte
_SEND_HEAD = 0x08063200 - 4
_ACK_HEAD = 0x080A5200 - 4
_FLOW_HEAD = 0x080B5A00 - 4
_LONG_ACK = 0x080A5280
"""An ACK whose sub-message has a size of more than one byte (the low seven bits vary)."""
_ID_BASE = 0x0800
RUN_ENTRIES_MAX = 64
"""The limit of SENDs in one `Sends`, so that a turn of the loop may end between two of them."""
_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1


class Decoder:
    """One connection's incoming bytes. Keeps at most one partial frame, and no byte of a frame with an
    invalid header.

    Copies each byte a bounded number of times, however the stream is cut. Not usable after it has raised.
    """

    __slots__ = (
        "_failed",
        "_frame_bytes_max",
        "_need_bytes",
        "_partial",
        "_prefix",
        "frames",
        "has_long_ack",
    )

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, prefix: Callable[[], bytes] = bytes) -> None:
        """`prefix()` makes the bytes to prepend to the entries of a chunk."""
        self._prefix = prefix
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()
        self._need_bytes = 0
        """The length of the partial frame when complete; 0 while its sizes are unknown."""
        self._failed: str | None = None
        self.frames = 0
        """How many frames the last chunk has completed."""
        self.has_long_ack = False
        """Whether the commands of the last chunk have an ACK that may name too many entries for one turn of
        the loop (`parse.ack_parts`).
        """

    @property
    def partial_bytes(self) -> int:
        """The received bytes of an incomplete frame."""
        return len(self._partial)

    @property
    def frame_bytes(self) -> int:
        """The length of the incomplete frame when complete; 0 if there is none, or its size is unknown."""
        return self._need_bytes if self._partial else 0

    def feed(self, chunk: bytes) -> list[Command]:
        """The commands that `chunk` completes, in order. Usual SENDs of one producer come as `Sends`.

        Raises `BadFrame` (a `ProtocolError`) at the first invalid frame; the error has the commands before
        that frame. From then on every call raises.
        """
        commands: list[Command] = []
        self.has_long_ack = False
        self.frames = 0
        if self._failed is not None:
            raise BadFrame(self._failed, commands)
        try:
            if not self._partial:
                self._scan(chunk, 0, commands)
            else:
                self._complete(chunk, commands)
        except ProtocolError as error:
            self._failed = str(error)
            self._partial = bytearray()
            raise BadFrame(self._failed, commands) from error
        return commands

    def _complete(self, chunk: bytes, commands: list[Command]) -> None:
        """Join the partial frame and `chunk`."""
        partial = self._partial
        if self._need_bytes == 0:
            # fewer than eight bytes were left over: not worth a special path
            self._partial = bytearray()
            self._scan(bytes(partial) + chunk, 0, commands)
            return
        missing = self._need_bytes - len(partial)
        if len(chunk) < missing:
            partial += chunk
            return
        # A large frame comes in many chunks: each byte is copied into place once, however many there are.
        partial += memoryview(chunk)[:missing]
        self._partial = bytearray()
        self._scan(bytes(partial), 0, commands)
        self._scan(chunk, missing, commands)

    def _scan(self, data: bytes, at: int, commands: list[Command]) -> None:
        """Read the frames of `data` from `at` on; the rest becomes the partial frame."""
        length = len(data)
        view = memoryview(data)
        unpack_head = _HEAD.unpack_from
        frame_bytes_max = self._frame_bytes_max
        frames = need = 0
        # The lists of the last `Sends`, to which the next SEND of the same producer is added.
        run_of = -1
        prefix: bytes | None = None
        sequence_ids: list[int] = []
        numbers: list[int] = []
        highest: list[int] = []
        entries: list[bytes] = []
        while length - at >= _HEAD_BYTES:
            total, command_size, head, id_field, tag = unpack_head(data, at)
            # Before anything is kept: a client must not make the broker hold 2 GiB by four bytes of header.
            if total > frame_bytes_max or command_size > total - 4:
                raise _bad_sizes(total, command_size, frame_bytes_max)
            end = at + 4 + total
            if end > length:
                need = 4 + total
                break
            # Type, tag and the sub-message's size in one number: the size of the command is part of the head,
            # so a usual command leaves a constant.
            kind = head - command_size
            command: Command | None = None
            if kind == _SEND_HEAD:
                if prefix is None:
                    prefix = self._prefix()
                if native is not None:
                    # `_scan_send` in C, for as many SENDs as follow each other.
                    found = native.scan_sends(data, at, frame_bytes_max, RUN_ENTRIES_MAX, prefix)
                    if found is not None:
                        at, run_of, sequence_ids, numbers, highest, entries = found
                        run = Sends(run_of, sequence_ids, numbers, highest, entries, len(prefix))
                        commands.append(run)
                        frames += len(entries)
                        continue
                sent = _scan_send(data, view, at + 8 + command_size, end, id_field, tag, at + 15)
                if sent is not None:
                    producer_id, sequence_id, num_messages, highest_sequence_id = sent
                    if producer_id != run_of or len(entries) == RUN_ENTRIES_MAX:
                        run_of = producer_id
                        sequence_ids, numbers, highest, entries = [], [], [], []
                        run = Sends(producer_id, sequence_ids, numbers, highest, entries, len(prefix))
                        commands.append(run)
                    sequence_ids.append(sequence_id)
                    numbers.append(num_messages)
                    highest.append(highest_sequence_id)
                    entries.append(prefix + data[at + 8 + command_size : end])
                    frames += 1
                    at = end
                    continue
            elif kind in (_ACK_HEAD, _FLOW_HEAD):
                scan = scan_ack if kind == _ACK_HEAD else _scan_flow
                if id_field & 0xFF80 == _ID_BASE and tag == 0x10:
                    command = scan(data, id_field & 0x7F, at + 15, at + 8 + command_size)
                # Two bytes: a client with many consumers. Each ACK of those above 127 once went the long way.
                elif (
                    id_field & 0xFF80 == _ID_BASE | 0x80
                    and tag < 0x80
                    and command_size > 7
                    and data[at + 15] == 0x10
                ):
                    consumer_id = id_field & 0x7F | tag << 7
                    command = scan(data, consumer_id, at + 16, at + 8 + command_size)
            elif head & 0xFFFFFF80 == _LONG_ACK and command_size <= LONG_ACK_BYTES:
                command = _scan_long_ack(data, at + 11, at + 8 + command_size)
            if command is None:
                # All that the scanners do not know, with the same result. tests/wire feeds both and compares.
                command = parse_command(data, view, at + 8, at + 8 + command_size, end)
                if command_size > LONG_ACK_BYTES and type(command) is pb.CommandAck:
                    self.has_long_ack = True
            commands.append(command)
            run_of = -1
            frames += 1
            at = end
        else:
            self.frames += frames
            frames = 0
            need, at = self._scan_end(data, at, commands)
        self.frames += frames
        if at < length:
            self._partial += view[at:]
            self._need_bytes = need

    def _scan_end(self, data: bytes, at: int, commands: list[Command]) -> tuple[int, int]:
        """Scan the last few bytes of a chunk; returns (size of the frame that begins there, where it
        begins).
        """
        while (left := len(data) - at) >= 4:
            if left < 8:
                (total,) = _U32.unpack_from(data, at)
                if not 4 <= total <= self._frame_bytes_max:
                    raise _bad_sizes(total, 0, self._frame_bytes_max)
                return 0, at
            total, command_size = _SIZES.unpack_from(data, at)
            if total > self._frame_bytes_max or command_size > total - 4:
                raise _bad_sizes(total, command_size, self._frame_bytes_max)
            end = at + 4 + total
            if end > len(data):
                return 4 + total, at
            commands.append(parse_command(data, memoryview(data), at + 8, at + 8 + command_size, end))
            self.frames += 1
            at = end
        return 0, at


def _bad_sizes(total: int, command_size: int, frame_bytes_max: int) -> ProtocolError:
    if not 4 <= total <= frame_bytes_max:
        return ProtocolError(f"a frame of {total} bytes: between 4 and {frame_bytes_max} are allowed")
    return ProtocolError(f"a command of {command_size} bytes in a frame of {total}")


def _scan_send(
    data: bytes, view: memoryview, command_end: int, end: int, id_field: int, tag: int, at: int
) -> tuple[int, int, int, int] | None:
    """Producer id, sequence id, number of messages and highest sequence id of the usual SEND; None for any
    other shape. `at` is the offset of its sequence id, `end` the end of its frame.
    """
    try:
        # Ids below 128 take one byte, and clients count them from 0.
        producer_id = id_field - _ID_BASE
        if producer_id & ~0x7F or tag != 0x10:
            # two bytes of producer id
            if not 0x80 <= producer_id <= 0xFF or tag >= 0x80 or data[at] != 0x10:
                return None
            producer_id = producer_id & 0x7F | tag << 7
            at += 1
        sequence_id = data[at]
        at += 1
        if sequence_id >= 0x80:
            byte = data[at]
            byte2 = data[at + 1]
            if byte < 0x80:
                sequence_id = sequence_id & 0x7F | byte << 7
                at += 1
            elif byte2 < 0x80:
                sequence_id = sequence_id & 0x7F | (byte & 0x7F) << 7 | byte2 << 14
                at += 2
            else:
                sequence_id, at = scan_varint(data, at - 1)
                if sequence_id < 0:
                    return None
        num_messages = 1
        highest_sequence_id = 0
        if at != command_end:
            if data[at] == 0x18:
                num_messages, at = scan_varint(data, at + 1)
                if not 0 <= num_messages <= _INT32_MAX:
                    return None
            if at != command_end:
                if data[at] != 0x30:
                    return None
                highest_sequence_id, at = scan_varint(data, at + 1)
                if at != command_end or highest_sequence_id < 0:
                    return None
        magic, checksum, metadata_size = _CHECKSUM_AND_SIZE.unpack_from(data, at)
    except (IndexError, struct.error):
        return None
    # Messages without a checksum exist (old clients); protobuf's path knows them.
    if magic != MAGIC_CHECKSUM or metadata_size > end - at - 10:
        return None
    # The long way tells it and does not raise: Pulsar answers a wrong checksum with a send error to that
    # producer and keeps the connection.
    if crc_32c(view[at + 6 : end]) != checksum:
        return None
    return producer_id, sequence_id, num_messages, highest_sequence_id


def _scan_long_ack(data: bytes, at: int, end: int) -> Ack | None:
    """An ACK of 128 bytes or more; `at` is the offset of the size of its sub-message."""
    try:
        size, at = scan_varint(data, at)
        if at + size != end or data[at] != 0x08:
            return None
        consumer_id, at = scan_varint(data, at + 1)
        if data[at] != 0x10 or consumer_id < 0:
            return None
    except IndexError:
        return None
    return scan_ack(data, consumer_id, at + 1, end)


def _scan_flow(data: bytes, consumer_id: int, at: int, end: int) -> Flow | None:
    """The usual FLOW; `at` is the offset of its permits."""
    try:
        permits, at = scan_varint(data, at)
    except IndexError:
        return None
    if at != end or not 0 <= permits <= _UINT32_MAX:
        return None
    return Flow(consumer_id, permits)
