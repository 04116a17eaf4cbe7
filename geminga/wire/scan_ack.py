"""Reads the usual ACK straight from the buffer; see decoder.py for what "usual" means.

08 consumer id | 10 ack type
    | (1a size | 08 ledger id | 10 entry id | [18 partition] | [20 batch index])... | [40 request id]
"""

from __future__ import annotations

from geminga.loops import native
from geminga.wire.commands import Ack
from geminga.wire.varint import scan_varint, skip_varint


def scan_ack(data: bytes, consumer_id: int, at: int, end: int) -> Ack | None:
    """The usual ACK, whose ack type is at `at` and which ends at `end`; None for any other shape.

    May read bytes after `end`, but never accepts a value that depends on them.
    """
    if native is not None:
        found = native.scan_ack(data, at, end)
        return None if found is None else Ack(consumer_id, *found)
    positions: list[tuple[int, int]] = []
    same = b""  # how the id before began, up to its entry id: most lists name one ledger
    # No bounds are checked on the way: a short buffer raises IndexError, and the usual command pays for no
    # comparison.
    try:
        cumulative = data[at]
        at += 1
        while at < end and data[at] == 0x1A:
            sub_end = at + 2 + data[at + 1]  # never reached if the size takes more than this byte
            # A client acknowledges many entries of one ledger at a time. One comparison of bytes stands for
            # parsing the ledger id again.
            if positions and data.startswith(same, at):
                at += len(same)
            else:
                if data[at + 2] != 0x08:
                    return None
                begin = at
                ledger_id, at = scan_varint(data, at + 3)
                if data[at] != 0x10 or ledger_id < 0:
                    return None
                at += 1
                # Not after the last one, where the next id's bytes would lie behind the command.
                if sub_end < end:
                    same = data[begin:at]
            entry_id = data[at]
            at += 1
            if entry_id >= 0x80:
                byte = data[at]
                if byte < 0x80:
                    entry_id = entry_id & 0x7F | byte << 7
                    at += 1
                elif (byte2 := data[at + 1]) < 0x80:
                    entry_id = entry_id & 0x7F | (byte & 0x7F) << 7 | byte2 << 14
                    at += 2
                else:
                    entry_id, at = scan_varint(data, at - 1)
                    if entry_id < 0:
                        return None
            if at != sub_end and _skip_rest(data, at, sub_end) != sub_end:
                return None
            at = sub_end
            positions.append((ledger_id, entry_id))
        request_id = None
        if at < end and data[at] == 0x40:
            request_id, at = scan_varint(data, at + 1)
            if request_id < 0:
                return None
    except IndexError:
        return None
    # A cumulative ack of several ids has no meaning; the long way deals with it.
    if at != end or cumulative > 1 or not positions or (cumulative and len(positions) != 1):
        return None
    return Ack(consumer_id, cumulative == 1, positions, request_id)


def _skip_rest(data: bytes, at: int, end: int) -> int:
    """Where the id's partition and batch index end; they do not matter when an entry is acknowledged as a
    whole.
    """
    if data[at] == 0x18:
        at = skip_varint(data, at + 1)
    if at < end and data[at] == 0x20:
        at = skip_varint(data, at + 1)
    return at
