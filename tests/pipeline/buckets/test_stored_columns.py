"""Records of entry logs looked into many at once: the same as one by one, and no damaged byte passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap

from geminga.bookie.entry_logs.entry_log_format import FooterLedger, encode_footer, encode_header
from geminga.bookie.index.index_format import Row, Usage
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.ledger_name import NAMELESS
from geminga.bookie.records.records import RECORD_PREFIX_BYTES, ends_of, pack_records
from geminga.errors import ProtocolError
from geminga.pipeline.buckets.backlog import Backlog, stored_sources
from geminga.pipeline.buckets.buckets import BLOCK_BITS, Division, Region
from geminga.pipeline.buckets.record_columns import due_times_ms, likeness, right_records
from geminga.tracker.format.rows import ENTRY_BITS, ENTRY_MASK, position_of
from geminga.tracker.format.stored_bucket import whole_ledgers
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import peek, stamp, virtual_stamp

FAR_MS = 4_000_000_000_000
LEDGER = 300


def body(number: int, draw: np.random.Generator, *, shape: int) -> bytes:
    """A stored entry; the shapes differ in what a broker and a client may leave out or add."""
    metadata = pb.MessageMetadata(producer_name="writer", sequence_id=number, publish_time=1_700_000_000_000)
    if shape != 3:
        metadata.deliver_at_time = FAR_MS + int(draw.integers(1 << 30))
    if shape == 2:
        metadata.properties.add(key="k", value="v" * int(draw.integers(3)))
        metadata.partition_key = "key"
    head = metadata.SerializeToString()
    checksum = b"\x0e\x01" + draw.bytes(4) if shape in (0, 4) else b""
    stamped = b"" if shape == 1 else stamp(1_700_000_000_000 + number, number if shape == 4 else None)
    if shape == 5:
        stamped = virtual_stamp(1_800_000_000_000 + number)
    return stamped + checksum + len(head).to_bytes(4, "big") + head + draw.bytes(8)


def expected_ms(entry: bytes) -> int:
    try:
        return peek(entry).deliver_at_ms
    except ProtocolError:
        return 0


def table_of(bodies: list[bytes], first: int = 0) -> np.ndarray:
    parts: list[bytes] = []
    pack_records(LEDGER, first, bodies, parts)
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(bodies), -1).copy()


@pytest.mark.parametrize("shape", range(6))
def test_times_are_those_that_a_broker_reads(shape: int) -> None:
    draw = np.random.default_rng(shape)
    bodies = [body(1000 + number, draw, shape=shape) for number in range(200)]
    sizes = [len(entry) for entry in bodies]
    alike = [entry for entry in bodies if len(entry) == max(set(sizes), key=sizes.count)]
    records = table_of(alike)
    like = likeness(records)
    assert right_records(records, like, LEDGER, np.arange(len(alike))).all()
    assert due_times_ms(records, like).tolist() == [expected_ms(entry) for entry in alike]


def test_shapes_of_one_length_in_a_table() -> None:
    draw = np.random.default_rng(9)
    padded = [entry.ljust(90, b"x") for n in range(100) for entry in [body(n, draw, shape=n % 5)]]
    noise = [draw.bytes(90) for _ in range(20)]
    for entries in (padded, [*padded, *noise], noise):
        records = table_of(entries)
        assert due_times_ms(records, likeness(records)).tolist() == [expected_ms(e) for e in entries]


def test_every_flipped_bit_is_noticed_and_no_other() -> None:
    draw = np.random.default_rng(2)
    bodies = [body(number, draw, shape=0) for number in range(40)]
    whole = table_of(bodies, 7)
    for column in range(whole.shape[1]):
        records, row = whole.copy(), int(draw.integers(40))
        records[row, column] ^= np.uint8(1 << int(draw.integers(8)))
        right = right_records(records, likeness(records), LEDGER, np.arange(7, 47))
        assert np.flatnonzero(~right).tolist() == [row]
    assert not right_records(whole, likeness(whole), LEDGER, np.arange(8, 48)).any()
    assert not right_records(whole, likeness(whole), LEDGER + 1, np.arange(7, 47)).any()
    long = table_of([bytes([n]) * 5000 for n in range(30)])
    assert right_records(long, likeness(long), LEDGER, np.arange(30)).all()
    long[3, 4000] ^= 1
    assert np.flatnonzero(~right_records(long, likeness(long), LEDGER, np.arange(30))).tolist() == [3]


def closed_log(directory: Path, ledgers: dict[int, list[bytes]], run: int) -> Path:
    """An entry log with a footer, in runs of so many entries."""
    parts, rows, place = [encode_header(1)], [], 64
    for ledger_id, bodies in ledgers.items():
        for first in range(0, len(bodies), run):
            ends = ends_of(bodies[first : first + run])
            pack_records(ledger_id, first, bodies[first : first + run], parts)
            rows.append((ledger_id, Row(first, 1, place, ends)))
            place += ends[-1]
    usage = {id_: FooterLedger(Usage(len(bodies), 1), NAMELESS) for id_, bodies in ledgers.items()}
    path = Path(entry_log_path(str(directory), 1))
    path.write_bytes(b"".join([*parts, encode_footer(place, usage, rows)]))
    return path


def test_a_closed_log_gives_what_is_delayed_and_wanted(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    mixed = [body(n, draw, shape=n % 5) + bytes(n % 3) for n in range(500)]
    alike = [body(n + 1000, draw, shape=0) for n in range(500)]
    path = closed_log(tmp_path, {3: mixed, 4: alike, 5: alike, 9: [b"a bucket's entry"] * 40}, 100)
    done = BitMap([7, 8, 300])
    backlog = Backlog(
        frozenset({3, 4, 5}), (3, 20), {4: done.serialize()}, {9: whole_ledgers(4, 5)}, FAR_MS + 1000
    )

    def wanted(ledger_id: int, entries: list[bytes]) -> dict[int, int]:
        due = {ledger_id << ENTRY_BITS | n: expected_ms(entry) for n, entry in enumerate(entries)}
        return {code: at_ms for code, at_ms in due.items() if at_ms > FAR_MS + 1000}

    expected = wanted(3, mixed) | wanted(4, alike) | wanted(5, alike)
    expected = {
        code: at_ms
        for code, at_ms in expected.items()
        if code > (3 << ENTRY_BITS | 20) and not (code >> ENTRY_BITS == 4 and code & ENTRY_MASK in done)
    }

    def found() -> dict[int, int]:
        (source,) = stored_sources([str(tmp_path)], backlog)
        rows = source.rows()
        return dict(zip(rows.codes.tolist(), rows.times_ms.tolist(), strict=True))

    assert found() == expected
    (source,) = stored_sources([str(tmp_path)], backlog)
    regions = Region(*whole_ledgers(4, 5), 9)
    shares = list(source.shares(Division((regions,), frozenset({9}))))
    assert sum(number for _, what, number, _ in shares if what == "rows") == len(
        [code for code in expected if code >> ENTRY_BITS in (4, 5)]
    )
    assert sum(what == "entry" for _, what, _, _ in shares) == 40
    # A damaged record costs itself alone.
    data = bytearray(path.read_bytes())
    at = data.index((4).to_bytes(8, "big") + (250).to_bytes(8, "big")) - 4
    data[at + RECORD_PREFIX_BYTES + 20] ^= 1
    path.write_bytes(data)
    assert found() == {code: at_ms for code, at_ms in expected.items() if code != 4 << ENTRY_BITS | 250}


def test_counts_are_about_right_and_leave_no_ledger_out(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    alike = [body(n, draw, shape=0) for n in range(1000)]
    half = [body(n, draw, shape=3 * (n % 2)) for n in range(1000)]
    rare = [body(n, draw, shape=0 if n == 555 else 3) for n in range(1000)]
    # What is delayed begins at some place of a long ledger.
    late = [body(n, draw, shape=0 if n >= 6000 else 3) for n in range(10_000)]
    closed_log(tmp_path, {3: alike, 4: half, 5: rare, 6: alike[:30], 7: late}, 50)
    backlog = Backlog(frozenset({3, 4, 5, 6, 7}), (3, 499), {}, {}, 0)
    (source,) = stored_sources([str(tmp_path)], backlog)
    counts = {position_of(block << BLOCK_BITS): count for block, count in source.counts().items()}
    assert (counts[3, 0], counts[5, 0], counts[6, 0]) == (500, 1, 30)
    assert counts[4, 0] == pytest.approx(500, rel=0.05)
    assert (7, 0) not in counts
    assert counts[7, 4096] == pytest.approx(2192, abs=400)
    assert counts[7, 8192] == pytest.approx(1808, abs=50)
