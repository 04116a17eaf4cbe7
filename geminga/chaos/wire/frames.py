"""Cuts a stream of bytes into pieces that belong to one frame, and names each frame's command. No I/O.

A frame is `total size (4), command size (4), command, rest`; a command begins with its type, a varint.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.limits import FRAME_BYTES_MAX
from geminga.wire import pulsar_pb2 as pb

HEAD_BYTES: Final = 10
"""Both sizes, the tag of the command's type, and the type."""
TYPE_TAG: Final = 0x08
_NAMES: Final = {number: name for name, number in pb.BaseCommand.Type.items()}


class Piece(NamedTuple):
    """Bytes of one frame. A frame that comes in several reads has several pieces."""

    data: bytes
    command: str
    """Name of the command, "" for bytes of an unknown frame."""
    is_first: bool
    """Whether the frame begins with these bytes."""
    is_last: bool
    """Whether the frame ends with these bytes; False for an unknown frame."""


class Frames:
    """One direction of one connection."""

    def __init__(self) -> None:
        self._held = b""
        """The beginning of a frame, too short to name its command."""
        self._left_bytes = 0
        """Of the current frame."""
        self._command = ""

    def cut(self, data: bytes) -> list[Piece]:
        """The pieces of these bytes, in order. Fewer than `HEAD_BYTES` may be kept for the next call."""
        pieces = []
        data = self._held + data
        self._held = b""
        at = 0
        while at < len(data):
            is_first = not self._left_bytes
            if is_first:
                head = data[at : at + HEAD_BYTES]
                if len(head) < HEAD_BYTES and _may_be_head(head):
                    self._held = head
                    break
                total_bytes, self._command = _frame_at(head)
                # Not a frame: a relay that began in the middle of one. All of this read is passed on.
                self._left_bytes = total_bytes or len(data) - at
            piece = data[at : at + self._left_bytes]
            self._left_bytes -= len(piece)
            at += len(piece)
            is_last = not self._left_bytes and bool(self._command)
            pieces.append(Piece(piece, self._command, is_first, is_last))
        return pieces

    def rest(self) -> bytes:
        """What was kept, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _may_be_head(head: bytes) -> bool:
    if len(head) >= 4 and not 6 <= int.from_bytes(head[:4], "big") <= FRAME_BYTES_MAX:
        return False
    return len(head) < 9 or head[8] == TYPE_TAG


def _frame_at(head: bytes) -> tuple[int, str]:
    """Bytes of the whole frame and its command; (0, "") if no frame begins here."""
    total = int.from_bytes(head[:4], "big")
    command = int.from_bytes(head[4:8], "big")
    if not (_may_be_head(head) and 2 <= command <= total - 4 and head[9] in _NAMES):
        return 0, ""
    return total + 4, _NAMES[head[9]]
