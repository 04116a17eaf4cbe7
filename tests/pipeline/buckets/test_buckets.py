"""Buckets built in bulk: against the format's own reader, in a real data directory, damaged and repaired."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from geminga.bookie.offline.inspection import LogRecord, walk_records
from geminga.cli.main import main
from geminga.cli.pipeline.stopped_topic import opened_topic
from geminga.clock import RealClock
from geminga.errors import CorruptData
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.metadata import records
from geminga.metadata.ledger_ids import LedgerIds
from geminga.names import TopicName
from geminga.pipeline.audit.events import WrongLog
from geminga.pipeline.buckets import backlog as buckets_backlog
from geminga.pipeline.buckets import served
from geminga.pipeline.buckets.backlog import (
    Backlog,
    ParquetRows,
    Share,
    StoredRows,
    parquet_sources,
    stored_sources,
)
from geminga.pipeline.buckets.buckets import (
    BLOCK_BITS,
    Division,
    Encoded,
    Region,
    apart,
    cut,
    overlapping,
    range_of_text,
    regions_of,
    row_shares,
    rows_per_bucket,
    text_of,
)
from geminga.pipeline.buckets.here import build, ranges_of, verify
from geminga.pipeline.buckets.store import backlog_of, load, named_buckets
from geminga.storage.disk import RealDisk
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore, CursorOwner
from geminga.tracker.format.bucket_format import decode_directory, encode_bucket
from geminga.tracker.format.rows import ENTRY_BITS, Rows, code_of, concatenate, from_columns
from geminga.tracker.format.stored_bucket import KeyRange, whole_ledgers
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import stamp
from tests.pipeline.buckets.stored_backlog import stores

TOPIC = "persistent://public/default/orders"
SMALL = BucketSettings(indexes_min=100, segment_indexes_max=30)
FAR_MS = 4_000_000_000_000
ENTRIES = 400


# -- kernels ----------------------------------------------------------------------------------------------


def blocks(counts: dict[tuple[int, int], int]) -> dict[int, int]:
    """By block, of (ledger, block of it)."""
    return {
        code_of(ledger_id, n << BLOCK_BITS) >> BLOCK_BITS: count for (ledger_id, n), count in counts.items()
    }


def test_ranges_have_enough_rows_and_every_ledger_once() -> None:
    small = {(5, 0): 60, (1, 0): 50, (2, 0): 49, (3, 0): 1, (9, 0): 0, (7, 0): 5}
    assert cut(blocks(small), 100) == [whole_ledgers(1, 3), whole_ledgers(5, 7)]
    assert cut({}, 100) == []


def test_ranges_end_inside_ledgers_and_leave_nothing_out() -> None:
    large = {(4, n): 4096 for n in range(3, 30)} | {(6, 0): 4096, (6, 7): 100, (9, 1): 5}
    found = cut(blocks(large), 50_000)
    assert [text_of(one) for one in found] == ["4:0-4:65535", "4:65536-4:118783", "4:118784-9:4294967295"]
    assert cut(blocks(large), 27 * 4096) == [whole_ledgers(4, 4), whole_ledgers(6, 9)]


def test_a_position_belongs_to_the_narrowest_bucket_that_has_it() -> None:
    buckets = {1: KeyRange(0, 100), 2: KeyRange(20, 30), 3: KeyRange(30, 60), 4: KeyRange(101, 110)}
    assert regions_of(buckets) == [
        Region(0, 19, 1),
        Region(20, 30, 2),
        Region(31, 60, 3),
        Region(61, 100, 1),
        Region(101, 110, 4),
    ]
    assert overlapping(buckets) == {1, 2, 3}
    assert apart([KeyRange(5, 9), KeyRange(0, 7)]) == [KeyRange(0, 4), KeyRange(5, 9)]
    assert regions_of({}) == []


def test_a_range_as_text_and_back() -> None:
    for one, text in (
        (whole_ledgers(10, 11), "10-11"),
        (KeyRange(code_of(10, 5), code_of(11, 7)), "10:5-11:7"),
    ):
        assert (text_of(one), range_of_text(text)) == (text, one)
    assert range_of_text("") is None


def test_rows_per_bucket() -> None:
    assert rows_per_bucket(10, SMALL) == 100
    assert rows_per_bucket(100_000_000, BucketSettings()) == 100_000


@pytest.fixture
def backlog(tmp_path: Path) -> Path:
    """1,000 rows of ledgers 3 to 12, in two files and no order."""
    draw = np.random.default_rng(1)
    order = draw.permutation(1000)
    for number, some in enumerate((order[:400], order[400:])):
        table = {
            "ledger_id": 3 + some // 100,
            "entry_id": some % 100,
            "deliver_at_ms": FAR_MS + some * 7 % 997,
        }
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet", row_group_size=150)
    return tmp_path


def test_buckets_hold_the_rows_of_their_ranges(backlog: Path) -> None:
    sources = parquet_sources([str(backlog)])
    ranges = ranges_of(sources, BucketSettings(indexes_min=250))
    assert ranges == [whole_ledgers(*one) for one in ((3, 5), (6, 8), (9, 11), (12, 12))]
    found = {}
    for bucket in build(sources, ranges, SMALL):
        directory = decode_directory(bucket.entries[-1:])
        assert (directory.start_ledger, directory.end_ledger) == bucket.covered.ledgers
        rows = concatenate(
            [directory.decode_segment(n, bucket.entries[n]) for n in range(directory.segments)]
        )
        found.update(zip(rows.codes.tolist(), rows.times_ms.tolist(), strict=True))
    assert found == {(3 + n // 100) << ENTRY_BITS | n % 100: FAR_MS + n * 7 % 997 for n in range(1000)}


def test_a_damaged_or_poor_backlog_is_named(backlog: Path) -> None:
    path = backlog / "0.parquet"
    pq.write_table(pa.table({"ledger_id": [1], "entry_id": [1]}), path)
    with pytest.raises(WrongLog, match=r"0\.parquet: no column deliver_at_ms"):
        parquet_sources([str(path)])
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(CorruptData, match=r"0\.parquet"):
        parquet_sources([str(path)])


# -- buckets that overlap ---------------------------------------------------------------------------------

LEDGER = 3


def at(*entry_ids: int) -> dict[int, int]:
    """Due times by code."""
    return {code_of(LEDGER, n): FAR_MS + n * 7 % 997 for n in entry_ids}


class Fixed(NamedTuple):
    """Rows of a backlog, and buckets."""

    due_ms: dict[int, int]
    buckets: dict[int, dict[int, int]]
    damaged: frozenset[int] = frozenset()

    def rows(self) -> Rows:
        return from_columns(list(self.due_ms.values()), list(self.due_ms))

    def counts(self) -> dict[int, int]:
        raise AssertionError

    def shares(self, division: Division) -> Iterator[Share]:
        yield from row_shares(self.rows(), division)
        for ledger_id, due_ms in self.buckets.items():
            rows = from_columns(list(due_ms.values()), list(due_ms)).sorted()
            bucket = encode_bucket(LEDGER, LEDGER, rows, 1000, 30)
            for number, entry in enumerate([*bucket.segments, *bucket.directory]):
                yield ledger_id, "entry", number, entry[:-1] if ledger_id in self.damaged else entry


def test_buckets_that_overlap_are_right_together() -> None:
    """A wide one has what was read again of the range of another."""
    spans = {7: (0, 99), 8: (40, 79), 9: (0, 39)}
    named = {
        id_: KeyRange(code_of(LEDGER, first), code_of(LEDGER, last)) for id_, (first, last) in spans.items()
    }
    buckets = {
        7: at(*range(50, 55), *range(80, 100)),
        8: at(*range(40, 50), *range(55, 80)),
        9: at(*range(40)),
    }
    backlog = at(*range(100))
    assert verify([Fixed(backlog, buckets)], named) == []
    assert verify([Fixed(backlog, buckets, frozenset({7}))], named) == [
        (7, "damaged", 20, LEDGER, -1),
        (8, "missing", 5, LEDGER, 50),
    ]
    del buckets[8][code_of(LEDGER, 45)]
    buckets[7][code_of(LEDGER, 52)] += 1
    assert verify([Fixed(backlog, buckets)], named) == [
        (8, "missing", 1, LEDGER, 45),
        (8, "other time", 1, LEDGER, 52),
    ]
    buckets = {**buckets, 8: at(*range(40, 80)), 9: at(*range(41))}
    assert verify([Fixed(backlog, buckets)], named) == [
        (7, "unknown", 5, LEDGER, 50),
        (9, "damaged", 40, LEDGER, -1),
    ]


# -- on their way to a broker -----------------------------------------------------------------------------


def test_a_bundle_ends_where_no_bucket_that_is_there_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "BUCKETS_MAX", 3)
    new = [Encoded(KeyRange(10 * n, 10 * n + 9), 1, [b"x"]) for n in range(7)]

    def bundles(*old: tuple[int, int]) -> list[int]:
        return [len(some) for some in served._bundles(new, [KeyRange(*one) for one in old])]

    assert bundles() == [3, 3, 1]
    assert bundles((0, 19), (20, 45), (50, 60)) == [2, 3, 2]
    assert bundles((25, 35)) == [2, 3, 2]
    assert bundles((0, 100)) == [3, 3, 1], "it cannot be helped"
    assert bundles((200, 300)) == [3, 3, 1]


# -- a data directory -------------------------------------------------------------------------------------


def message(number: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="writer", sequence_id=number, publish_time=1234)
    if number % 4:
        metadata.deliver_at_time = FAR_MS + number * 7 % 997
    head = metadata.SerializeToString()
    return stamp(1235) + len(head).to_bytes(4, "big") + head + b"payload"


async def _fill(directory: Path) -> None:
    async with stores(directory) as (bookie, metadata, nursery):
        topic = await ManagedLedger.open(
            records.managed_ledger_path(TopicName.parse(TOPIC)),
            bookie,
            metadata,
            LedgerIds(metadata),
            RealClock(),
            ManagedLedgerSettings(ledger_entries_max=50, rollover_min_ms=0),
            tail_cache=TailCache(1 << 20),
        )
        topic.life.run_in(nursery)
        cursor = await topic.open_cursor("sub", initial="earliest")
        for number in range(ENTRIES):
            while topic.number_of_entries < number:
                await trio.lowlevel.checkpoint()
            topic.append([message(number)], None)
        while topic.number_of_entries < ENTRIES:
            await trio.lowlevel.checkpoint()
        first = topic.ledgers[0].ledger_id
        cursor.acknowledge_cumulative((first, 20))
        cursor.acknowledge([(first, 30), (first, 41), (first, 42)])
        await topic.life.close()


ACKNOWLEDGED = {*range(21), 30, 41, 42}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stored") / "data"
    trio.run(_fill, directory)
    return directory


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def look(directory: Path) -> Backlog:
    async def main() -> Backlog:
        async with opened_topic(str(directory), TOPIC, "sub") as opened:
            return backlog_of(opened.topic, opened.cursor, CursorOwner(opened.cursor), 2000)

    return trio.run(main)


def sources_of(directory: Path) -> list[StoredRows]:
    return stored_sources([str(directory)], look(directory))


def built(directory: Path) -> int:
    sources = sources_of(directory)
    buckets = list(build(sources, ranges_of(sources, SMALL), SMALL))

    async def main() -> int:
        async with opened_topic(str(directory), TOPIC, "sub") as opened:
            return await load(opened.topic, CursorOwner(opened.cursor), buckets, sources[0].backlog.buckets)

    return trio.run(main)


def faults_of(directory: Path) -> list[tuple[str, int]]:
    sources = sources_of(directory)
    return [(fault.fault, fault.positions) for fault in verify(sources, sources[0].backlog.buckets)]


def test_the_backlog_of_a_subscription_is_what_is_delayed_and_not_acknowledged(data: Path) -> None:
    backlog = look(data)
    ledgers = sorted(backlog.ledgers)
    found = concatenate([source.rows() for source in sources_of(data)])
    numbers = {
        ledgers.index(code >> ENTRY_BITS) * 50 + (code & ((1 << ENTRY_BITS) - 1))
        for code in found.codes.tolist()
    }
    assert numbers == {n for n in range(ENTRIES) if n % 4} - ACKNOWLEDGED
    due = dict(zip(found.codes.tolist(), found.times_ms.tolist(), strict=True))
    assert due[ledgers[1] << ENTRY_BITS | 3] == FAR_MS + 53 * 7 % 997


def test_loaded_buckets_are_found_by_the_broker_and_right(data: Path) -> None:
    assert built(data) == 3
    assert len(look(data).buckets) == 3
    assert faults_of(data) == []

    async def recover() -> int:
        async with opened_topic(str(data), TOPIC, "sub") as opened:
            store = BucketStore(opened.topic.storage)
            count = 0
            for ledger_id in named_buckets(CursorOwner(opened.cursor)):
                bucket, _ = await store.open(ledger_id)
                count += bucket.directory.rows
            return count

    assert trio.run(recover) == len({n for n in range(ENTRIES) if n % 4} - ACKNOWLEDGED)


def test_building_again_replaces_and_deletes(data: Path) -> None:
    built(data)
    before = look(data).buckets
    assert built(data) == 3
    after = look(data).buckets
    assert sorted(before.values()) == sorted(after.values())
    assert before.keys().isdisjoint(after.keys())
    assert faults_of(data) == []


def test_what_is_acknowledged_later_is_told_as_harmless(data: Path) -> None:
    built(data)

    async def acknowledge() -> None:
        async with opened_topic(str(data), TOPIC, "sub") as opened:
            ledger_id = opened.topic.ledgers[0].ledger_id
            opened.cursor.acknowledge([(ledger_id, 45), (ledger_id, 46)])

    trio.run(acknowledge)
    assert faults_of(data) == [("unknown", 2)]


def damage(directory: Path, ledger_id: int) -> None:
    """Flip a bit in the first entry of this ledger in whichever entry log has it."""
    for path in sorted(directory.rglob("*.log")):
        file = RealDisk().open(str(path))
        try:
            found = [
                r for r in walk_records(file, 64, file.size()) if isinstance(r, LogRecord) and not r.is_name
            ]
        finally:
            file.close()
        for record in found:
            if record.ledger_id == ledger_id:
                data = bytearray(path.read_bytes())
                data[record.end - 10] ^= 1
                path.write_bytes(data)
                return
    raise AssertionError("no entry log has it")


def rebuild(capsys: pytest.CaptureFixture[str], directory: Path, *flags: str) -> tuple[int, str]:
    capsys.readouterr()
    topic = ["--topic", TOPIC, "--subscription", "sub", "--master", "none"]
    code = main(["pipeline", "rebuild", "--data-dir", str(directory), *topic, *flags])
    return code, capsys.readouterr().out


def test_a_damaged_bucket_is_found_and_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(data)
    buckets = look(data).buckets
    hit = sorted(buckets)[1]
    damage(data, hit)
    code, out = rebuild(capsys, data, "--verify")
    assert (code, "3 buckets, 1 of them wrong" in out, "damaged" in out) == (1, True, True)
    code, out = rebuild(capsys, data, "--repair")
    assert (code, "1 buckets made" in out) == (0, True)
    after = look(data).buckets
    assert sorted(after.values()) == sorted(buckets.values())
    assert buckets.keys() - after.keys() == {hit}
    code, out = rebuild(capsys, data, "--verify")
    assert (code, out) == (0, "3 buckets, 0 of them wrong\n")


def test_everything_is_made_anew_by_one_command(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = rebuild(capsys, data)
    wanted = len({n for n in range(ENTRIES) if n % 4} - ACKNOWLEDGED)
    assert (code, out) == (0, f"1 buckets made, of {wanted} delayed messages\n")
    assert rebuild(capsys, data, "--verify") == (0, "1 buckets, 0 of them wrong\n")
    code = main(["pipeline", "rebuild", "--data-dir", str(data), "--topic", TOPIC, "--subscription", "other"])
    assert (code, "no subscription 'other'" in capsys.readouterr().err) == (1, True)


@pytest.mark.parametrize("has_footer", [True, False])
def test_messages_that_cannot_be_read_are_counted(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_footer: bool
) -> None:
    ledgers = sorted(look(data).ledgers)
    damage(data, ledgers[0])  # its first entry is acknowledged
    assert rebuild(capsys, data)[0] == 0
    for ledger_id in ledgers[1:3]:
        damage(data, ledger_id)
    if not has_footer:
        monkeypatch.setattr(buckets_backlog, "runs_of", lambda file, part: None)
    code, out = rebuild(capsys, data)
    told = f"2 messages left out, as their records are damaged: of ledgers {ledgers[1]}, {ledgers[2]}\n"
    if not has_footer:  # then nobody knows that the one of the first ledger does not matter
        told = (
            "3 messages left out, as their records are damaged: 3 at least in logs without a footer, "
            "of unknown ledgers\n"
        )
    assert (code, out.endswith(told), "1 buckets made" in out) == (1, True, True), out
    assert rebuild(capsys, data, "--allow-damaged")[0] == 0
    code, out = rebuild(capsys, data, "--verify")
    assert (code, "unread, " in out, "unknown" in out) == (0, True, False), out


def test_a_wrong_time_and_a_missing_row_are_told(data: Path, tmp_path: Path) -> None:
    built(data)
    sources = sources_of(data)
    rows = concatenate([source.rows() for source in sources])
    table = {
        "ledger_id": rows.codes >> ENTRY_BITS,
        "entry_id": rows.codes & ((1 << ENTRY_BITS) - 1),
        "deliver_at_ms": rows.times_ms.copy(),
    }
    table["deliver_at_ms"][5] += 1
    more = {"ledger_id": table["ledger_id"][:1], "entry_id": [45_000], "deliver_at_ms": [FAR_MS]}
    path = tmp_path / "backlog.parquet"
    pq.write_table(pa.concat_tables([pa.table(table), pa.table(more)]), path)
    other: list[StoredRows | ParquetRows] = [*parquet_sources([str(path)])]
    only = sources[0].backlog._replace(ledgers=frozenset())
    other += [source._replace(backlog=only) for source in sources]
    found = verify(other, only.buckets)
    assert sorted((fault.fault, fault.positions) for fault in found) == [("missing", 1), ("other time", 1)]
