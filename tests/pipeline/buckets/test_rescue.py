"""What a bookie's files hold, with and without damage, an index, metadata: compared with what was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from pyroaring import BitMap64

from geminga.bookie.journal.journal_format import FILE_HEADERS_BYTES_MAX
from geminga.bookie.offline.inspection import LogRecord, walk_records
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.pipeline.buckets.rescue import (
    Inventory,
    all_topics,
    ledgers_in,
    owned,
    rescue_batches,
    rescued_batches,
    take_inventory,
    write_rescued,
)
from geminga.pipeline.buckets.rescue_columns import ENTRIES, EntryColumns, said_by
from geminga.pipeline.buckets.rescue_files import Hole, NothingThere, plan
from geminga.pipeline.files import stored_disk
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.stored_disk import disk_by_url
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import stamp, virtual_stamp
from tests.pipeline.files.s3_server import BUCKET, s3_server

SMALL = BookieSettings(
    journal_file_bytes=65_536,
    journal_allocate_bytes=8192,
    write_cache_bytes=20_000,
    entry_log_bytes=20_000,
    row_entries_max=7,
)
TOPIC = "persistent://public/default/orders"
TOPIC_PATH = "/managed-ledgers/public/default/persistent/orders"
ENTRIES_EACH = 120
LEDGERS = (3, 4, 5)


def message(number: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="writer", sequence_id=number, publish_time=1234)
    metadata.properties.add(key="colour", value="blue")
    if number % 2:
        metadata.deliver_at_time = 5000 + number
        metadata.partition_key = f"k{number}"
    head = metadata.SerializeToString()
    body = len(head).to_bytes(4, "big") + head + b"payload-%d-" % number + b"x" * 100
    return stamp(1235) + body


async def _fill(directory: Path, close: bool) -> None:
    index = RocksKeyValue(str(directory / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), SMALL)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        durable: dict[int, int] = {}
        writers = {
            id_: bookie.create_ledger(
                id_,
                on_durable=lambda last, id_=id_: durable.update({id_: last}),  # type: ignore[misc]
                on_failed=lambda error: None,
                topic=TOPIC_PATH if id_ != 5 else "",
            )
            for id_ in LEDGERS
        }
        for number in range(ENTRIES_EACH):
            for id_, writer in writers.items():
                writer.append(message(number) if id_ != 4 or number else b"no message")
            if not bookie.has_room():
                await bookie.wait_room()
            if number % 40 == 39 and number < ENTRIES_EACH - 1:
                await bookie.flush()
        if close:
            await bookie.close()
        else:
            while durable != dict.fromkeys(LEDGERS, ENTRIES_EACH - 1):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    index.close()
    shutil.rmtree(directory / "index")


def _filled(directory: Path, *, close: bool) -> Path:
    (directory / "index").mkdir(parents=True)
    trio.run(_fill, directory, close)
    return directory


@pytest.fixture(scope="module")
def closed_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _filled(tmp_path_factory.mktemp("closed") / "data", close=True)


@pytest.fixture(scope="module")
def crashed_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _filled(tmp_path_factory.mktemp("crashed") / "data", close=False)


@pytest.fixture(params=["closed", "crashed"])
def data(
    request: pytest.FixtureRequest, closed_original: Path, crashed_original: Path, tmp_path: Path
) -> Path:
    original = closed_original if request.param == "closed" else crashed_original
    return Path(shutil.copytree(original, tmp_path / "data"))


def rescued(directory: Path, holes: list[Hole] | None = None) -> dict[tuple[int, int], dict[str, object]]:
    found = holes if holes is not None else []
    table = pa.Table.from_batches(rescue_batches(RealDisk(), [str(directory)], found), ENTRIES)
    rows = table.to_pylist()
    by_place = {(row["ledger_id"], row["entry_id"]): row for row in rows}
    assert len(by_place) == len(rows), "an entry came twice"
    return by_place


def written() -> dict[tuple[int, int], bytes]:
    return {
        (id_, number): message(number) if id_ != 4 or number else b"no message"
        for id_ in LEDGERS
        for number in range(ENTRIES_EACH)
    }


def logs(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


def journals(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.journal"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def records_of(path: Path) -> list[LogRecord]:
    file = RealDisk().open(str(path))
    try:
        return [r for r in walk_records(file, 64, file.size()) if isinstance(r, LogRecord) and not r.is_name]
    finally:
        file.close()


def test_every_entry_is_there_once_with_its_bytes(data: Path) -> None:
    holes: list[Hole] = []
    found = rescued(data, holes)
    assert {place: row["body"] for place, row in found.items()} == written()
    assert holes == []


def test_topics_are_those_of_footers_records_and_journals(data: Path) -> None:
    topics = {place[0]: row["topic"] for place, row in rescued(data).items()}
    assert topics == {3: TOPIC, 4: TOPIC, 5: None}
    for path in logs(data):
        path.write_bytes(path.read_bytes()[:-1])
    assert {place[0]: row["topic"] for place, row in rescued(data).items()} == topics
    for path in logs(data):
        path.unlink()
    left = rescued(data)
    assert {id_: topic for (id_, _), row in left.items() if (topic := row["topic"])} in (
        {},
        {3: TOPIC, 4: TOPIC},
    )


def test_journals_alone_name_topics(crashed_original: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(crashed_original, tmp_path / "data"))
    for path in logs(data):
        path.unlink()
    left = rescued(data)
    assert left.keys() == written().keys()
    assert {id_: row["topic"] for (id_, _), row in left.items()} == {3: TOPIC, 4: TOPIC, 5: None}


def test_a_data_directory_in_an_object_store(crashed_original: Path) -> None:
    with s3_server() as store:
        for path in crashed_original.rglob("*"):
            if path.is_file():
                store.objects[f"copies/data/{path.relative_to(crashed_original)}"] = path.read_bytes()
        files = Files(store.settings)
        disk, place = disk_by_url(files), f"s3a://{BUCKET}/copies"
        known = plan(disk, [place], files)
        inventories = [take_inventory(disk, part) for part in known.slices]
        topics = all_topics(known, inventories)
        names = [
            write_rescued(files, f"s3a://{BUCKET}/out", (number, part, own, topics))
            for number, (part, own) in enumerate(zip(known.slices, owned(inventories), strict=True))
        ]
        tables = [pq.read_table(files.open(f"s3a://{BUCKET}/out/{name}")) for name in names if name]
        with pytest.raises(NothingThere, match=f"no entry log and no journal below s3a://{BUCKET}/none"):
            plan(disk, [f"s3a://{BUCKET}/none"], files)
    rows = pa.concat_tables(tables).to_pylist()
    assert len(rows) == len(written())
    assert {(row["ledger_id"], row["entry_id"]): row["body"] for row in rows} == written()
    assert {row["topic"] for row in rows} == {TOPIC, None}


def test_pieces_of_a_file_come_from_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_disk, "BLOCK_BYTES", 10)
    data = bytes(range(200))
    (tmp_path / "a").write_bytes(data)
    file = stored_disk.StoredFile(Files().open(str(tmp_path / "a")), "a")
    places = [(0, 5), (5, 5), (3, 30), (190, 20), (199, 1), (200, 5), (0, 200)]
    assert [file.pread(*place) for place in places] == [data[at : at + size] for at, size in places]
    assert file.size() == 200


def test_a_delay_of_a_virtual_clock_counts_from_the_stamp() -> None:
    body = message(7).removeprefix(stamp(1235))
    shown_ms = 1_800_000_000_000
    said = said_by(virtual_stamp(shown_ms) + body)
    assert said["deliver_at_ms"] == shown_ms + 5007 - 1234
    assert (said["publish_time_ms"], said["broker_time_ms"]) == (1234, shown_ms)
    assert said_by(virtual_stamp(shown_ms) + message(8).removeprefix(stamp(1235)))["deliver_at_ms"] is None


def test_a_message_says_what_it_is(data: Path) -> None:
    found = rescued(data)
    row = found[3, 7]
    assert row["is_message"]
    assert (row["publish_time_ms"], row["broker_time_ms"], row["deliver_at_ms"]) == (1234, 1235, 5007)
    assert (row["producer"], row["sequence_id"], row["key"], row["messages"]) == ("writer", 7, b"k7", 1)
    assert row["properties"] == [("colour", "blue")]
    body, at = row["body"], row["payload_at"]
    assert isinstance(body, bytes)
    assert isinstance(at, int)
    assert body[at:].startswith(b"payload-7-")
    assert found[3, 8]["deliver_at_ms"] is None
    assert not found[4, 0]["is_message"]
    assert found[4, 0]["body"] == b"no message"


def test_what_the_logs_do_not_have_comes_from_the_journal_and_the_other_way_round(data: Path) -> None:
    every = written()
    for path in logs(data)[::2]:
        path.unlink()
    from_journals = rescued(data)
    assert from_journals.keys() <= every.keys()
    for path in journals(data):
        path.unlink()
    from_logs = rescued(data)
    assert 0 < len(from_logs) < len(every)
    assert from_logs.keys() <= from_journals.keys()


@pytest.mark.parametrize("where", ["length", "ledger", "crc", "body"])
def test_a_damaged_record_costs_no_other(closed_original: Path, tmp_path: Path, where: str) -> None:
    data = Path(shutil.copytree(closed_original, tmp_path / "data"))
    for path in journals(data):
        path.unlink()
    before = rescued(data)
    path = logs(data)[1]
    hit = records_of(path)[5]
    flip(path, hit.offset + {"length": 3, "ledger": 11, "crc": 21, "body": 40}[where])
    holes: list[Hole] = []
    after = rescued(data, holes)
    assert before.keys() - after.keys() == {(hit.ledger_id, hit.entry_id)}
    assert holes == [Hole(str(path), hit.offset, hit.end - hit.offset)]


def test_a_log_without_footer_and_header_gives_its_records(closed_original: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(closed_original, tmp_path / "data"))
    for path in journals(data):
        path.unlink()
    before = rescued(data)
    path = logs(data)[0]
    whole = path.read_bytes()
    path.write_bytes(b"\0" * 64 + whole[64:-40])
    assert rescued(data).keys() == before.keys()


def test_a_journal_whose_headers_are_gone_gives_its_entries(crashed_original: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(crashed_original, tmp_path / "data"))
    for path in logs(data):
        path.unlink()
    before = rescued(data)
    path = max(journals(data), key=lambda p: p.stat().st_size)
    whole = bytearray(path.read_bytes())
    whole[:FILE_HEADERS_BYTES_MAX] = bytes(FILE_HEADERS_BYTES_MAX)
    path.write_bytes(whole)
    assert rescued(data).keys() == before.keys()
    group = whole.index(b"GRP1")
    whole[group + 30] ^= 1
    path.write_bytes(whole)
    assert rescued(data).keys() == before.keys()


def test_slices_of_one_log_have_all_of_it(closed_original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan(RealDisk(), [str(closed_original)])
    monkeypatch.setattr("geminga.pipeline.buckets.rescue_files.SLICE_BYTES", 3000)
    cut = plan(RealDisk(), [str(closed_original)])
    assert len(cut.slices) > len(whole.slices)
    assert {place: row["body"] for place, row in rescued(closed_original).items()} == written()


def test_each_slice_gives_what_is_its_own(closed_original: Path) -> None:
    known = plan(RealDisk(), [str(closed_original)])
    inventories = [take_inventory(RealDisk(), part) for part in known.slices]
    own = owned(inventories)
    counted = [sum(len(BitMap64.deserialize(ids)) for ids in one.values()) for one in own]
    given = [
        sum(batch.num_rows for batch in rescued_batches(RealDisk(), part, mine, known.topics))
        for part, mine in zip(known.slices, own, strict=True)
    ]
    assert counted == given
    assert sum(given) == len(written())


def test_ledgers_and_their_gaps(closed_original: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(closed_original, tmp_path / "data"))
    for path in journals(data):
        path.unlink()
    flip(logs(data)[0], records_of(logs(data)[0])[2].offset + 50)
    hit = records_of(Path(shutil.copy(logs(closed_original)[0], tmp_path / "one.log")))[2]
    known = plan(RealDisk(), [str(data)])
    held = ledgers_in([take_inventory(RealDisk(), part) for part in known.slices], known.topics)
    assert [(one.topic, one.ledger_id) for one in held] == [(TOPIC, 3), (TOPIC, 4), (None, 5)]
    gaps = {one.ledger_id: one.missing for one in held if one.missing}
    assert gaps == {hit.ledger_id: [(hit.entry_id, hit.entry_id)]}


def test_gaps_below_the_greatest_entry() -> None:
    def gaps(*ids: int) -> list[tuple[int, int]]:
        inventory = Inventory({7: BitMap64(ids).serialize()}, [], {})
        return ledgers_in([inventory], {})[0].missing

    assert gaps(0, 1, 2) == []
    assert gaps(3) == [(0, 2)]
    assert gaps(0, 2, 3, 7) == [(1, 1), (4, 6)]
    assert gaps(2**40) == [(0, 2**40 - 1)]


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (pb.MessageMetadata(producer_name="p", sequence_id=HUGE, publish_time=HUGE, event_time=HUGE),
         {"sequence_id": -1, "publish_time_ms": -1, "event_time_ms": -1}),
        (pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, deliver_at_time=-(2**63)),
         {"deliver_at_ms": -(2**63)}),
        (pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=-1,
                            properties=[pb.KeyValue(key="a", value="1"), pb.KeyValue(key="a", value="2")]),
         {"messages": -1, "properties": [("a", "2")]}),
        (b"\x0a\x02p\xff\x10\x01\x18\x02\x22\x06\x0a\x01\xff\x12\x01\xfe\x32\x01\xfd",
         {"producer": "p\ufffd", "properties": [("\ufffd", "\ufffd")], "key": b"\xfd"}),
        (b"\x0a\x02p\xff\x10\x01\x18", {"is_message": False, "producer": None}),
        (b"\x0a\x01p", {"is_message": False, "producer": None}),
    ],
)  # fmt: skip
def test_whatever_an_entry_says_has_a_row(
    head: pb.MessageMetadata | bytes, expected: dict[str, object]
) -> None:
    data = head if isinstance(head, bytes) else head.SerializeToString()
    columns = EntryColumns("a.log")
    columns.add("t", 1, 2, 3, stamp(2**63) + len(data).to_bytes(4, "big") + data + b"payload")
    (row,) = columns.take().to_pylist()
    assert {name: row[name] for name in expected} == expected


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingThere, match="no entry log and no journal"):
        plan(RealDisk(), [str(tmp_path)])
    with pytest.raises(NothingThere, match="no such directory"):
        plan(RealDisk(), [str(tmp_path / "none")])
