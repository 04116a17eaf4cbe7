"""A node of the metadata tree, the operations on it, and its row in RocksDB.

    row = version (u64, big-endian) | value

The row has no checksum of its own: RocksDB checks each block of a table and each record of its log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.errors import CorruptData, PeerError
from geminga.limits import MIB
from geminga.metadata.keys import path_of

ANY_VERSION: Final = None
MUST_NOT_EXIST: Final = -1
# ZooKeeper's usual limit (`jute.maxbuffer`), for which Pulsar's records are made.
VALUE_BYTES_MAX = 1 * MIB
"""Largest value of a node."""
# Versions are kept in the row, so that a compare-and-set survives a restart, as ZooKeeper's do.
VERSION_BYTES = 8


class ValueTooLarge(PeerError):
    """The value is larger than `VALUE_BYTES_MAX`: a client sent too many properties or policies."""

    http_status = 413


class Stored(NamedTuple):
    """A node: its value and how often it was overwritten since it was created (0 = never)."""

    value: bytes
    version: int


class Put(NamedTuple):
    """`expected_version`: a version the node must have, MUST_NOT_EXIST, or ANY_VERSION."""

    path: str
    value: bytes
    expected_version: int | None = ANY_VERSION


class Delete(NamedTuple):
    """`expected_version`: a version the node must have, or ANY_VERSION; it must exist in any case."""

    path: str
    expected_version: int | None = ANY_VERSION


def encode_row(stored: Stored) -> bytes:
    return stored.version.to_bytes(VERSION_BYTES, "big") + stored.value


def decode_row(key: bytes, row: bytes) -> Stored:
    if len(row) < VERSION_BYTES:
        raise CorruptData(f"metadata node {path_of(key)!r}: {len(row)} bytes, too short for its version")
    return Stored(row[VERSION_BYTES:], int.from_bytes(row[:VERSION_BYTES], "big"))
