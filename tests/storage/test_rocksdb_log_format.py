"""Reading RocksDB's logs: what RocksDB wrote is intact, and damage is told from torn ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastcrc.crc32 import iscsi
from hypothesis import example, given
from hypothesis import strategies as st

from geminga.storage.rocksdb_log_format import (
    BLOCK_BYTES,
    FIRST,
    HEADER_BYTES,
    LAST,
    MIDDLE,
    WHOLE,
    Damage,
    Part,
    WriteAheadCheck,
    damage_in_manifest,
    read_log,
    synced_marker,
)


def log_of(*payloads: bytes) -> bytearray:
    """A log as RocksDB writes it."""
    content = bytearray()
    for payload in payloads:
        rest, begun = payload, False
        while True:
            room = BLOCK_BYTES - len(content) % BLOCK_BYTES
            if room < HEADER_BYTES:
                content += bytes(room)
                room = BLOCK_BYTES
            part, rest = rest[: room - HEADER_BYTES], rest[room - HEADER_BYTES :]
            kind = (MIDDLE if rest else LAST) if begun else (FIRST if rest else WHOLE)
            crc = iscsi(bytes((kind,)) + part)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            content += masked.to_bytes(4, "little") + len(part).to_bytes(2, "little") + bytes((kind,)) + part
            begun = True
            if not rest:
                break
    return content


def batch(first: int, count: int, operations: bytes = b"") -> bytes:
    return first.to_bytes(8, "little") + count.to_bytes(4, "little") + operations


def mark(first: int, sequence: int) -> bytes:
    key = synced_marker(sequence)
    return batch(first, 1, bytes((0, len(key))) + key)


def check(content: bytes) -> int | None:
    damage = WriteAheadCheck().add("1.log", content)
    return None if damage is None else damage[1]


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES) | st.integers(0, 50), max_size=8))
@example([BLOCK_BYTES - HEADER_BYTES])
@example([BLOCK_BYTES - 2 * HEADER_BYTES - 1, 5])
@example([BLOCK_BYTES - 2 * HEADER_BYTES, 5])
def test_payloads_come_back(sizes: list[int]) -> None:
    payloads = [bytes((index + 1,)) * size for index, size in enumerate(sizes)]
    items = list(read_log(bytes(log_of(*payloads))))
    assert all(isinstance(item, Part) for item in items)
    assert b"".join(item.payload for item in items if isinstance(item, Part)) == b"".join(payloads)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_to_their_end(content: bytes, far: bool) -> None:
    content = bytes(log_of(bytes(BLOCK_BYTES - 100))) * far + content
    list(read_log(content))
    damage_in_manifest(content)
    check(content)


def test_damage_before_a_mark_is_damage_and_after_it_a_torn_end() -> None:
    synced, unsynced = batch(1, 3, b"abc"), batch(5, 2, b"defg" * 10)
    intact = log_of(synced, mark(4, 3), unsynced, batch(7, 1, b"h"))
    assert check(bytes(intact)) is None
    in_synced, in_unsynced = intact.copy(), intact.copy()
    in_synced[10] ^= 1
    assert check(bytes(in_synced)) == 0
    place = len(log_of(synced, mark(4, 3)))
    in_unsynced[place + 20] ^= 1
    assert check(bytes(in_unsynced)) is None
    assert check(bytes(in_unsynced + log_of(mark(8, 7)))) == place


def test_damage_is_proved_by_a_mark_in_a_later_file() -> None:
    torn = log_of(batch(1, 1, b"x"), batch(2, 1, b"lost"))
    torn[-1] ^= 1
    checker = WriteAheadCheck()
    assert checker.add("1.log", bytes(torn)) is None
    assert checker.add("2.log", bytes(log_of(batch(3, 1)))) is None
    assert checker.add("3.log", bytes(log_of(mark(4, 1)))) is None
    assert checker.add("4.log", bytes(log_of(mark(5, 2)))) == ("1.log", len(log_of(batch(1, 1, b"x"))))


def test_a_length_that_grew_does_not_hide_what_follows() -> None:
    content = log_of(batch(1, 1, b"x"), batch(2, 1, b"y"), mark(3, 2))
    content[5] ^= 0x40
    assert check(bytes(content)) == 0
    last = log_of(batch(1, 1, b"x"))
    last[5] ^= 0x40
    assert check(bytes(last)) == 0, "the checksum fits the bytes that are there"


@pytest.mark.parametrize("kind", [5, 6, 7, 8])
def test_record_types_on_which_rocksdb_loops_are_refused(kind: int) -> None:
    content = log_of(b"a", b"b", b"c")
    place = HEADER_BYTES + 1
    content[place + 6] = kind
    assert damage_in_manifest(bytes(content)) == place
    assert check(bytes(content)) == place


def test_a_manifest_is_damaged_only_before_its_last_record() -> None:
    content = log_of(b"first", b"second")
    assert damage_in_manifest(bytes(content)) is None
    assert damage_in_manifest(bytes(content[:-2])) is None
    content[9] ^= 1
    assert damage_in_manifest(bytes(content)) == 0


WRITER = """
import os, random, sys
from geminga.storage.key_value import RocksKeyValue
draw = random.Random(1)
key_value = RocksKeyValue(sys.argv[1], write_buffer_bytes=8 << 20)
for n in range(300):
    size = draw.choice([1, 10, 100, 1000, 32_000, 33_000, 100_000])
    key_value.write([(b"k%03d" % n, draw.randbytes(size))], sync=draw.random() < 0.5)
os._exit(0)
"""


def test_what_rocksdb_writes_is_intact(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path / "db")], env=environment, check=True)
    logs = [path.read_bytes() for path in sorted((tmp_path / "db").glob("*.log"))]
    assert sum(map(len, logs)) > 5_000_000
    items = [item for content in logs for item in read_log(content)]
    assert not [item for item in items if isinstance(item, Damage)]
    assert sum(item.type in (WHOLE, LAST) for item in items) > 300
    checker = WriteAheadCheck()
    assert [checker.add("", content) for content in logs] == [None] * len(logs)
    for manifest in (tmp_path / "db").glob("MANIFEST-*"):
        assert damage_in_manifest(manifest.read_bytes()) is None
