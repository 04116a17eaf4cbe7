"""Reads a log of system calls (`strace -f -y -xx`) and says which receipts left before a sync covered them.

A message is covered once the write with RWF_DSYNC which carried it has returned with all its bytes, or an
fdatasync of the journal has returned 0 that began after the write which carried the message had returned.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from geminga.wire import pulsar_pb2 as pb

MARKER = re.compile(rb"<message (\d+)>")
"""What each payload must hold, with its sequence id."""
WRITES = ("pwrite64", "pwritev", "pwritev2", "write", "writev")
SENDS = ("sendto", "sendmsg", "write", "writev")
TRACED = ("fdatasync", *WRITES, "sendto", "sendmsg")
_LINE = re.compile(r"(\d+) +(?:\S+ )?(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r"^\d+<([^>]*)>")


@dataclass
class Order:
    """What was seen."""

    messages: set[int] = field(default_factory=set)
    """Sequence ids found in writes to the journal."""
    receipts: int = 0
    syncs: int = 0
    early: list[int] = field(default_factory=list)
    """Sequence ids whose receipt left before their sync."""


@dataclass
class _Call:
    name: str
    path: str
    data: bytes
    written: frozenset[int]
    """Before it began."""
    syncs: bool


def check_order(lines: Iterable[str], *, journal: str) -> Order:
    """`journal` is what a journal's path ends with."""
    order = Order()
    under_way: dict[str, _Call] = {}
    written: set[int] = set()
    synced: set[int] = set()
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        thread, resumed, name, rest = match.groups()
        if resumed is None:
            call = _Call(name, _place(rest), _data(rest), frozenset(written), "RWF_DSYNC" in rest)
            if name in SENDS and call.path.startswith(("socket:", "TCP", "TCPv6")):
                for sequence_id in _receipts(call.data):
                    order.receipts += 1
                    if sequence_id not in synced:
                        order.early.append(sequence_id)
            if "<unfinished" in rest:
                under_way[thread] = call
                continue
        else:
            begun = under_way.pop(thread, None)
            if begun is None:
                continue
            call = begun
        if not call.path.endswith(journal):
            continue
        if call.name in WRITES:
            found = {int(number) for number in MARKER.findall(call.data)}
            order.messages |= found
            written |= found
            if call.syncs and rest.rstrip().endswith(f"= {len(call.data)}"):
                order.syncs += 1
                synced |= found
        elif call.name == "fdatasync" and rest.rstrip().endswith("= 0"):
            order.syncs += 1
            synced |= call.written
    return order


def _place(rest: str) -> str:
    match = _PLACE.match(rest)
    # Paths are in hexadecimal too, where strace was told so.
    path = match.group(1) if match else ""
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


def _data(rest: str) -> bytes:
    return b"".join(bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(rest))


def _receipts(data: bytes) -> Iterator[int]:
    """Sequence ids of the receipts among the frames of one send, which begins with a frame."""
    at = 0
    while at + 8 <= len(data):
        total, command_bytes = struct.unpack_from(">II", data, at)
        try:
            command = pb.BaseCommand.FromString(data[at + 8 : at + 8 + command_bytes])
        except Exception:  # not a frame: an HTTP answer, say
            return
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            yield command.send_receipt.sequence_id
        at += 4 + total
