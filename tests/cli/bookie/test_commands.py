"""`geminga bookie` on the files of a stopped bookie: what it lists, what it finds, what it makes anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.index.index_format import (
    DELETED,
    MARK_KEY,
    State,
    decode_row,
    encode_row,
    entry_key,
    split_key,
    usage_key,
)
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.offline.findings import ALL_ROWS
from geminga.bookie.offline.inspection import LogRecord, entry_log_ids, footer_of, walk_records
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.cli.main import main
from geminga.metadata import records
from geminga.metadata.records import LedgerIdsRecord, LedgerInfo, LedgerRecord, ManagedLedgerRecord, encode
from geminga.metadata.store import MetadataStore
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.wire import pulsar_pb2 as pb

SMALL = BookieSettings(
    journal_file_bytes=65_536,
    journal_allocate_bytes=8192,
    write_cache_bytes=20_000,
    entry_log_bytes=20_000,
    row_entries_max=7,
)
TOPIC = "persistent://public/default/orders"
TOPIC_PATH = "/managed-ledgers/public/default/persistent/orders"


def message(number: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="writer", sequence_id=number, publish_time=1234)
    metadata.properties.add(key="colour", value="blue")
    head = metadata.SerializeToString()
    return len(head).to_bytes(4, "big") + head + b"payload-%d-" % number + b"x" * 100


async def _fill(data_dir: Path, close: bool) -> None:
    index = RocksKeyValue(str(data_dir / "index"))
    metadata = RocksKeyValue(str(data_dir / "metadata"))
    store = MetadataStore(metadata)
    bookie = await Bookie.open(RealDisk(), index, str(data_dir / "bookie"), SMALL)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await nursery.start(bookie.run)
        durable: dict[int, int] = {}
        await store.put(LedgerIdsRecord.path, encode(LedgerIdsRecord(next_id=101)))
        for ledger_id in (3, 4, 5):
            record = LedgerRecord(topic=TOPIC_PATH, purpose="data", created_ms=1)
            await store.put(records.ledger_path(ledger_id), encode(record))
        writers = {
            id_: bookie.create_ledger(
                id_,
                on_durable=lambda last, id_=id_: durable.update({id_: last}),  # type: ignore[misc]
                on_failed=lambda error: None,
                topic=TOPIC_PATH,
                purpose="data",
            )
            for id_ in (3, 4, 5)
        }
        for number in range(120):
            for id_, writer in writers.items():
                if id_ != 4 or number % 2:
                    writer.append(message(number))
            if not bookie.has_room():
                await bookie.wait_room()
        # An entry of ledger 5 that became durable behind the flush would be dropped from the cache by the
        # deletion. The journal would keep it, and the index would keep the deletion for its sake.
        while durable != {3: 119, 4: 59, 5: 119}:
            await trio.lowlevel.checkpoint()
        await bookie.flush()
        await bookie.delete_ledger(5)
        await store.delete(records.ledger_path(5))
        # A flush for which a full cache asked may have waited for the one above, and would move the mark.
        await bookie.flush()
        if not close:
            for number in range(5):
                writers[3].append(message(1000 + number))
                while durable[3] < 120 + number:  # so that each is a group of its own
                    await trio.lowlevel.checkpoint()
        else:
            await bookie.close()
        nursery.cancel_scope.cancel()
    index.close()
    metadata.close()


def filled(directory: Path, *, close: bool = True) -> Path:
    for name in ("index", "metadata"):
        (directory / name).mkdir(parents=True)
    trio.run(_fill, directory, close)
    return directory


@pytest.fixture(scope="module")
def closed_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("closed") / "data")


@pytest.fixture
def data(closed_original: Path, tmp_path: Path) -> Path:
    """A bookie that was closed in order."""
    return Path(shutil.copytree(closed_original, tmp_path / "data"))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """One that was not: five entries of ledger 3 are in the journal only."""
    return filled(tmp_path / "crashed", close=False)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["bookie", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


Call = Callable[..., tuple[int, str, str]]


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def places(data_dir: Path) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Every entry that the index has -> log, offset, length."""
    values = RocksKeyValue(str(data_dir / "index"))
    found = {}
    for key, value in values.scan(*ALL_ROWS):
        ledger_id, first = split_key(key)
        row = decode_row(first, value)
        begin = 0
        for at, end in enumerate(row.ends):
            found[ledger_id, first + at] = row.log_id, row.offset + begin, end - begin
            begin = end
    values.close()
    return found


def test_ledgers(data: Path, call: Call) -> None:
    code, out, _ = call("ledgers", "--data-dir", data, "--json")
    found = {row["ledger"]: row for row in lines(out)}
    assert code == 0
    assert (found[3]["entries"], found[3]["state"], found[3]["topic"]) == (120, "open", TOPIC)
    assert found[4]["entries"] == 60
    assert 5 not in found
    assert found[3]["entry_logs"]
    code, out, _ = call("ledgers", "--data-dir", data)
    assert code == 0
    assert any(line.split()[:2] == ["3", "120"] and TOPIC in line for line in out.splitlines())


def test_what_only_the_journal_has_is_listed_and_shown(crashed: Path, call: Call) -> None:
    _, out, _ = call("ledgers", "--data-dir", crashed, "--json")
    found = {row["ledger"]: row for row in lines(out)}
    assert (found[3]["entries"], found[3]["journal_entries"]) == (120, 5)
    assert found[4]["journal_entries"] == 0
    code, out, _ = call("entry", 3, 122, "--data-dir", crashed, "--json")
    (shown,) = lines(out)
    assert code == 0
    assert bytes.fromhex(shown["hex"]) == message(1002)
    assert ".journal" in shown["place"]
    assert call("verify", "--data-dir", crashed)[0] == 0


def test_entry_logs(data: Path, call: Call) -> None:
    _, out, _ = call("entry-logs", "--data-dir", data, "--json")
    rows = lines(out)
    assert [row["log"] for row in rows] == entry_log_ids(RealDisk(), str(data / "bookie/entry-logs"))
    assert all(row["closed"] for row in rows)
    mixed = [row for row in rows if 5 in row["ledgers"]]
    assert mixed
    assert all(row["live_share"] < 1 and 5 not in row["live_ledgers"] for row in mixed)
    assert sum(row["live_bytes"] for row in rows) == sum(length for _, _, length in places(data).values())
    assert "SHARE" in call("entry-logs", "--data-dir", data)[1]


def test_journals(crashed: Path, call: Call) -> None:
    _, out, _ = call("journals", "--data-dir", crashed, "--json")
    rows = lines(out)
    assert any(row["needed"] for row in rows)
    _, out, _ = call("journals", "--data-dir", crashed)
    assert "replayed from offset" in out
    needed = [row for row in rows if row["needed"]]
    entries = 0
    for row in needed:
        code, out, _ = call("dump-journal", row["path"], "--json")
        assert code == 0
        entries += sum(r["last"] - r["first"] + 1 for r in lines(out) if "last" in r)
        names = [(r["ledger"], r["purpose"], r["topic"]) for r in lines(out) if "topic" in r]
        assert set(names) <= {(id_, "data", TOPIC_PATH) for id_ in (3, 4, 5)}
    assert entries >= 5
    code, out, _ = call("dump-journal", needed[-1]["journal"], "--data-dir", crashed)
    assert code == 0
    assert "entries, up to offset" in out


def test_ledgers_are_named_without_metadata(crashed: Path, call: Call) -> None:
    shutil.rmtree(crashed / "metadata")
    code, out, _ = call("ledgers", "--data-dir", crashed, "--json")
    assert code == 0
    found = {row["ledger"]: (row["topic"], row["purpose"], row["state"]) for row in lines(out)}
    assert {id_: found[id_] for id_ in (3, 4)} == dict.fromkeys((3, 4), (TOPIC, "data", "-"))
    code, out, _ = call("entry", 3, 122, "--data-dir", crashed, "--json")
    (shown,) = lines(out)
    assert (code, shown["topic"], shown["purpose"]) == (0, TOPIC, "data")


def test_a_dump_has_every_record(data: Path, call: Call) -> None:
    log = data / "bookie/entry-logs/00000000000000000001.log"
    code, out, _ = call("dump-log", log, "--json")
    assert code == 0
    of_log = {
        (ledger, entry): offset for (ledger, entry), (id_, offset, _) in places(data).items() if id_ == 1
    }
    dumped = {(r["ledger"], r["entry"]): r["offset"] for r in lines(out) if "entry" in r}
    names = [(r["ledger"], r["purpose"], r["topic"]) for r in lines(out) if "topic" in r]
    assert sorted(names) == [(id_, "data", TOPIC_PATH) for id_ in sorted({id_ for id_, _ in dumped})]
    assert of_log
    assert of_log.items() <= dumped.items()
    code, out, _ = call("dump-log", 1, "--data-dir", data)
    assert code == 0
    assert f"{len(dumped)} records" in out
    assert "  ledger 3: " in out


def test_an_entry_is_shown_with_its_metadata(data: Path, capfdbinary: Any) -> None:
    code = main(["bookie", "entry", "3", "7", "--data-dir", str(data)])
    out = capfdbinary.readouterr().out.decode()
    assert code == 0
    for text in ("producer_name: writer", "sequence_id: 7", "property colour: blue", TOPIC, "payload-7-"):
        assert text in out
    assert main(["bookie", "entry", "3", "7", "--raw", "--data-dir", str(data)]) == 0
    assert capfdbinary.readouterr().out == message(7)
    assert main(["bookie", "entry", "3", "120", "--data-dir", str(data)]) == 1
    assert b"ledger 3 has no entry 120" in capfdbinary.readouterr().err


def test_all_is_well(data: Path, call: Call) -> None:
    code, out, _ = call("verify", "--data-dir", data, "--json")
    (row,) = lines(out)
    assert code == 0, out
    counts = row["counts"]
    assert counts["findings"] == 0
    assert counts["log_records"] >= 180
    assert counts["index_entries"] == len(places(data))
    assert counts["journals"] > 0
    assert "damage      none" in call("verify", "--data-dir", data)[1]


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("part", ["length", "ledger", "entry", "crc", "body"])
def test_a_flipped_bit_in_a_record_is_found_and_the_rest_is_read(data: Path, call: Call, part: str) -> None:
    (log_id, offset, _) = places(data)[3, 20]
    log = data / f"bookie/entry-logs/{log_id:020d}.log"
    before = lines(call("verify", "--data-dir", data, "--json")[1])[-1]["counts"]["log_records"]
    flip(log, offset + {"length": 2, "ledger": 11, "entry": 19, "crc": 21, "body": 60}[part])
    code, out, _ = call("verify", "--data-dir", data, "--json")
    *findings, last = lines(out)
    assert code == 1
    assert [(f["path"], f["offset"]) for f in findings] == [(str(log), offset)]
    lost = before - last["counts"]["log_records"]
    # A wrong length hides what comes before the next row begins.
    assert lost == 1 if part != "length" else 1 <= lost <= 7
    assert call("entry", 3, 20, "--data-dir", data)[0] == 1
    code, out, _ = call("dump-log", log)
    assert code == 1
    assert f"{offset} " in out


def test_what_is_damaged_is_named_by_ledger_entry_and_topic(data: Path, call: Call) -> None:
    """A run of damaged records is one finding, with the first of them."""
    at = places(data)
    log_id, begin, _ = at[3, 20]
    assert at[3, 29][0] == log_id
    log = data / f"bookie/entry-logs/{log_id:020d}.log"
    content = bytearray(log.read_bytes())
    for entry in range(20, 30):
        content[at[3, entry][1] + 40] ^= 1  # in the body
    log.write_bytes(content)
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    topic = "persistent://public/default/" + TOPIC_PATH.rpartition("/")[2]
    text = f"bytes are not a valid record; entries 20 to 29 of ledger 3 ({topic}) should be there"
    [finding] = [line for line in out.splitlines() if str(log) in line]
    assert finding.startswith(f"{log}: offset {begin}: ")
    assert finding.endswith(text)
    assert "damage      1" in out
    # A footer that is gone as well: the index says whose they are.
    log.write_bytes(content[: max(sum(place[1:]) for place in at.values() if place[0] == log_id)])
    assert text in call("verify", "--data-dir", data)[1]


def test_rows_that_name_what_is_not_there_are_one_finding(data: Path, call: Call) -> None:
    at = places(data)
    values = RocksKeyValue(str(data / "index"))
    key = entry_key(3, 0)
    row = decode_row(0, values.get(key) or b"")
    # Another entry of the same log: one of another log may lie at the very same offset.
    rest = {place for place in at if place[0] != 3 or place[1] > row.last}
    elsewhere = [begin for place, (log, begin, _) in at.items() if place in rest and log == row.log_id]
    values.write([(key, encode_row(row._replace(offset=elsewhere[0])))], sync=True)
    values.close()
    shown = call("verify", "--data-dir", data)[1]
    found = [line for line in shown.splitlines() if " not entr" in line]
    assert len(found) == 1, shown
    # The journal's first group may have the first entry alone.
    named = f"not entries 0 to {row.last}" if row.last else "not entry 0"
    assert f"{named} of ledger 3 (persistent://" in found[0]


def test_a_journal_in_which_the_mark_lies_is_missed(crashed: Path, call: Call) -> None:
    needed = [row for row in lines(call("journals", "--data-dir", crashed, "--json")[1]) if row["needed"]]
    path = Path(needed[0]["path"])
    path.write_bytes(bytes(path.stat().st_size))
    code, out, _ = call("verify", "--data-dir", crashed)
    assert code == 1
    assert f"{path}: offset 0: nothing is left of the file header and of the groups" in out
    path.unlink()
    code, out, _ = call("verify", "--data-dir", crashed)
    assert code == 1
    assert f"{path}: the journal in which the index's mark lies is not there" in out


async def _go_on(data_dir: Path, count: int, settings: BookieSettings) -> None:
    """Writes so many entries to ledger 7."""
    index = RocksKeyValue(str(data_dir / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(data_dir / "bookie"), settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        writer = bookie.create_ledger(7, on_durable=lambda last: None, on_failed=lambda error: None)
        for number in range(count):
            writer.append(message(number))
            if number % 100 == 99:
                await bookie.flush()
        await bookie.close()
        nursery.cancel_scope.cancel()
    index.close()


def test_an_index_that_is_older_than_the_entry_logs_is_damage(data: Path, tmp_path: Path, call: Call) -> None:
    """A copy of a running broker's files, the entry logs last."""
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    trio.run(_go_on, data, 100, SMALL)
    shutil.copytree(data / "bookie" / "entry-logs", copy / "bookie" / "entry-logs", dirs_exist_ok=True)
    code, out, _ = call("verify", "--data-dir", copy)
    assert code == 1
    lacks = "lacks entries 0 to 99 of ledger 7; the next start adds them"
    assert f"{copy}/index: it is older than the entry logs and {lacks}" in out


@pytest.mark.parametrize("free_files_max", [0, 2], ids=["deleted", "for reuse"])
def test_an_index_that_the_journals_have_left_behind_is_damage(
    data: Path, tmp_path: Path, call: Call, free_files_max: int
) -> None:
    """An old copy of the index: journals of that time are gone, or wait to be written over."""
    shutil.copytree(data / "index", tmp_path / "old")
    trio.run(_go_on, data, 2000, replace(SMALL, journal_free_files_max=free_files_max))
    assert call("verify", "--data-dir", data)[0] == 0
    shutil.rmtree(data / "index")
    shutil.copytree(tmp_path / "old", data / "index")
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert f"{data}/index: it is older than the oldest journal; the next start rebuilds it" in out
    assert "damage      none" not in out


def rows_of(out: str) -> set[tuple[int, int, int]]:
    return {(row["ledger"], row["first"], row["last"]) for row in lines(out)}


def test_a_journal_without_its_header_is_dumped_all_the_same(crashed: Path, call: Call) -> None:
    [*_, row] = [row for row in lines(call("journals", "--data-dir", crashed, "--json")[1]) if row["needed"]]
    assert row["header"] == "whole"
    path = Path(row["path"])
    before = rows_of(call("dump-journal", path, "--json")[1])
    for at, said in ((20, "damaged, one copy of two"), (512 + 20, "the groups in the file can be read")):
        flip(path, at)
        code, out, err = call("dump-journal", path, "--json")
        assert (code, rows_of(out)) == (1, before)
        assert f"{path}: offset 0: the file header is damaged" in err
        assert said in err
        assert said in call("journals", "--data-dir", crashed)[1]
    [*_, row] = [row for row in lines(call("journals", "--data-dir", crashed, "--json")[1]) if row["needed"]]
    assert (row["header"], row["written"]) == ("rebuilt", True)


def test_an_unreadable_journal_is_not_one_that_was_never_written(crashed: Path, call: Call) -> None:
    directory = crashed / "bookie/journal"
    [*_, row] = [row for row in lines(call("journals", "--data-dir", crashed, "--json")[1]) if row["needed"]]
    unused = directory / f"{row['journal'] + 1:020d}.journal"
    unused.write_bytes(bytes(8192))
    path = Path(row["path"])
    content = bytearray(path.read_bytes())
    content[:4096] = bytes(4096)
    for at in range(4096, len(content), 4096):
        content[at + 60] ^= 0xFF  # in the runs, or the first record: no group is right
    path.write_bytes(content)
    rows = {row["journal"]: row for row in lines(call("journals", "--data-dir", crashed, "--json")[1])}
    kinds = {id_: (found["header"], found["written"], found["needed"]) for id_, found in rows.items()}
    assert kinds[row["journal"]] == ("unreadable", True, True)
    assert kinds[row["journal"] + 1] == ("unused", False, False)
    listed = call("journals", "--data-dir", crashed)[1].splitlines()
    assert any(
        str(row["journal"]) in line and "neither its headers nor its groups" in line for line in listed
    )
    assert sum("never written" in line for line in listed) == 1
    for file, said in ((path, ", and so are the groups"), (unused, "or was never written")):
        code, out, err = call("dump-journal", file)
        assert (code, out) == (1, "")
        assert said in err


def test_a_damage_note_is_told_and_gone_with_the_damage(data: Path, call: Call) -> None:
    note = data / "index.damage"
    note.write_text("index/000009.sst: block checksum mismatch")
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert f"{note}: the next start rebuilds the index: index/000009.sst: block checksum" in out
    assert call("rebuild-index", "--data-dir", data)[0] == 0
    assert not note.exists()
    assert call("verify", "--data-dir", data)[0] == 0


@pytest.mark.parametrize("from_end", [1, 10, 20, 28, 32, 40, 200])
def test_a_flipped_bit_in_footer_or_trailer_is_found(data: Path, call: Call, from_end: int) -> None:
    log = data / "bookie/entry-logs/00000000000000000001.log"
    flip(log, log.stat().st_size - from_end)
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1, out
    assert str(log) in out


@pytest.mark.parametrize("left", [b"", b"\0" * 64], ids=["nothing", "zeros"])
def test_a_log_that_a_crash_left_before_its_header_is_no_damage(data: Path, call: Call, left: bytes) -> None:
    (data / "bookie/entry-logs/00000000000000000099.log").write_bytes(left)
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 0, out


def test_a_lost_header_of_a_log_that_is_needed_is_damage(data: Path, call: Call) -> None:
    log = data / "bookie/entry-logs/00000000000000000001.log"
    flip(log, 2)
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert f"{log}: offset 0: the header is not that of entry log 1" in out


def test_damage_in_a_journal_is_found(crashed: Path, call: Call) -> None:
    needed = [row for row in lines(call("journals", "--data-dir", crashed, "--json")[1]) if row["needed"]]
    ends = {
        row["path"]: sorted({d["end"] for d in lines(call("dump-journal", row["path"], "--json")[1])})
        for row in needed
    }
    path, (first, second, *_) = next((Path(path), found) for path, found in ends.items() if len(found) > 2)
    flip(path, first + 100)
    code, out, _ = call("verify", "--data-dir", crashed)
    assert code == 1
    assert f"{path}: offset {first}: {second - first} bytes are damaged" in out
    flip(path, 20)
    assert f"{path}: offset 0: the file header is damaged" in call("verify", "--data-dir", crashed)[1]


def no_usage(values: RocksKeyValue) -> None:
    values.write([], [usage_key(1, 3)], sync=True)


def row_moved_by_a_byte(values: RocksKeyValue) -> None:
    key, value = next(iter(values.scan(*ALL_ROWS)))
    row = decode_row(0, value)
    values.write([(key, encode_row(row._replace(offset=row.offset + 1)))], sync=True)


def row_lost(values: RocksKeyValue) -> None:
    key, _ = list(values.scan(*ALL_ROWS))[2]
    values.write([], [key], sync=True)


def row_of_another_ledger(values: RocksKeyValue) -> None:
    rows = list(values.scan(*ALL_ROWS))
    (_, first), (key, _) = rows[-1], rows[0]
    values.write([(key, first)], sync=True)


def mark_lost(values: RocksKeyValue) -> None:
    values.write([], [MARK_KEY], sync=True)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (no_usage, "the sums for entry log 1 are not those of its rows"),
        (row_moved_by_a_byte, "of ledger 3 (persistent://public/default/orders), as the index has it"),
        (row_lost, "have no row"),
        (row_of_another_ledger, "of ledger 3 (persistent://public/default/orders), as the index has it"),
        (mark_lost, "there is no mark"),
    ],
)
def test_an_index_that_says_something_else_than_the_logs_is_found(
    data: Path, call: Call, plant: Callable[[RocksKeyValue], None], said: str
) -> None:
    values = RocksKeyValue(str(data / "index"))
    plant(values)
    values.close()
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert said in out
    assert call("rebuild-index", "--data-dir", data)[0] == 0
    assert call("verify", "--data-dir", data)[0] == 0


def test_a_journal_under_another_name_is_damage(crashed: Path, call: Call) -> None:
    journals = crashed / "bookie/journal"
    last = max(path for path in journals.glob("*.journal") if any(path.read_bytes()[:8]))
    other = last.with_name(f"{int(last.stem) + 3:020}.journal")
    last.rename(other)
    code, out, _ = call("verify", "--data-dir", crashed)
    assert code == 1
    assert "journals are there under other names than their headers say" in out
    assert f"mv {other.name} {last.name}" in out
    other.rename(last)
    assert call("verify", "--data-dir", crashed)[0] == 0


def test_a_missing_log_and_a_lost_index_are_found(data: Path, call: Call) -> None:
    (data / "bookie/entry-logs/00000000000000000001.log").unlink()
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert "in entry log 1, which is not there" in out
    shutil.rmtree(data / "index")
    assert call("verify", "--data-dir", data)[0] == 1
    code, _, err = call("ledgers", "--data-dir", data)
    assert code == 1
    assert "rebuild-index" in err
    assert not (data / "index").exists()


@pytest.mark.parametrize("how", ["whole", "lost", "damaged"])
def test_a_rebuilt_index_is_the_same_map(data: Path, call: Call, how: str) -> None:
    before = places(data)
    usage = index_usage(data)
    if how == "lost":
        shutil.rmtree(data / "index")
    elif how == "damaged":
        tables = list((data / "index").glob("MANIFEST-*"))
        flip(tables[0], 12)
    code, out, _ = call("rebuild-index", "--data-dir", data)
    assert code == 0, out
    assert before
    assert served(data) == before
    assert index_usage(data) == usage
    assert "ledgers without a metadata record are set aside" in out
    assert call("verify", "--data-dir", data)[0] == 0
    assert call("entry", 3, 119, "--data-dir", data)[0] == 0
    assert (data / "index.old-1").exists() == (how != "lost")


def test_a_rebuild_after_a_crash_takes_the_journal_too(crashed: Path, call: Call) -> None:
    before = {place for place in places(crashed) if place[0] != 5}
    code, out, _ = call("rebuild-index", "--data-dir", crashed)
    assert code == 0, out
    assert set(served(crashed)) == before | {(3, entry_id) for entry_id in range(120, 125)}


def index_usage(data_dir: Path) -> dict[int, dict[int, Any]]:
    values = RocksKeyValue(str(data_dir / "index"))
    index = LedgerIndex(values)
    index.load()
    values.close()
    served = {
        log: {id_: usage for id_, usage in of.items() if id_ not in index.states}
        for log, of in index.usage.items()
    }
    return {log: of for log, of in served.items() if of}


def served(data_dir: Path) -> dict[tuple[int, int], Any]:
    """The places of all entries that are neither deleted nor set aside."""
    values = RocksKeyValue(str(data_dir / "index"))
    index = LedgerIndex(values)
    index.load()
    values.close()
    return {place: row for place, row in places(data_dir).items() if place[0] not in index.states}


def test_a_directory_in_use_is_refused(data: Path, call: Call) -> None:
    lock = RealDisk().lock(str(data))
    try:
        for command in (["ledgers"], ["verify"], ["rebuild-index"], ["dump-log", "1"], ["entry", "3", "1"]):
            code, _, err = call(*command, "--data-dir", data)
            assert code == 4, command
            assert "already in use by process" in err
            assert "stop the broker first" in err
        log = data / "bookie/entry-logs/00000000000000000001.log"
        assert call("dump-log", log)[0] == 4
    finally:
        lock.release()


def test_what_is_not_a_data_directory_is_left_alone(tmp_path: Path, call: Call) -> None:
    code, _, err = call("ledgers", "--data-dir", tmp_path)
    assert code == 4
    assert "not a data directory" in err
    assert not list(tmp_path.iterdir())
    assert call("ledgerz")[0] == 2
    assert call()[0] == 2
    assert call("--help")[0] == 0


def test_a_walk_ends_at_its_end(data: Path) -> None:
    file = RealDisk().open(str(data / "bookie/entry-logs/00000000000000000001.log"))
    footer, _ = footer_of(file)
    assert footer is not None
    end = max(row.offset + row.ends[-1] for _, row in footer.rows)
    records = [each for each in walk_records(file, 64, end) if isinstance(each, LogRecord)]
    assert sum(not each.is_name for each in records) == sum(len(row.ends) for _, row in footer.rows)
    assert sum(each.is_name for each in records) == len(footer.ledgers)
    file.close()


def every_byte(directory: Path) -> dict[str, bytes]:
    """But for the file that says who has the lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    "command",
    [["ledgers"], ["entry-logs"], ["journals"], ["verify"], ["entry", "3", "122"], ["dump-log", "1"]],
    ids=" ".join,
)
def test_looking_changes_no_byte(crashed: Path, call: Call, command: list[str]) -> None:
    before = every_byte(crashed)
    assert any(name.endswith(".log") and name.startswith("index/") for name in before)
    for _ in range(2):
        assert call(*command, "--data-dir", crashed)[0] == 0
        assert every_byte(crashed) == before


def change_metadata(data_dir: Path, puts: list[tuple[str, bytes]], deletes: list[str]) -> None:
    async def change() -> None:
        values = RocksKeyValue(str(data_dir / "metadata"))
        async with trio.open_nursery() as nursery:
            store = MetadataStore(values)
            await nursery.start(store.run)
            for path, value in puts:
                await store.put(path, value)
            for path in deletes:
                await store.delete(path)
            nursery.cancel_scope.cancel()
        values.close()

    trio.run(change)


def test_old_metadata_makes_a_new_index_keep_what_it_does_not_know(data: Path, call: Call) -> None:
    change_metadata(
        data,
        [(LedgerIdsRecord.path, encode(LedgerIdsRecord(next_id=4)))],
        [records.ledger_path(4)],
    )
    before = places(data)
    code, out, _ = call("rebuild-index", "--data-dir", data)
    assert code == 1
    assert "a start will be refused: the metadata is behind the bookie's files" in out
    assert before.items() <= places(data).items()


def test_all_ledgers_may_be_deleted(data: Path, call: Call) -> None:
    change_metadata(data, [], [records.ledger_path(3), records.ledger_path(4)])
    shutil.rmtree(data / "index")
    code, out, _ = call("rebuild-index", "--data-dir", data)
    assert (code, "set aside, as nothing says whether they were deleted: 3-5;" in out) == (0, True)
    assert served(data) == {}


def test_a_deletion_that_the_metadata_denies_is_not_kept(data: Path, call: Call) -> None:
    """As a broker of an older version leaves it that had older metadata: the right one is put back now."""
    topic = ManagedLedgerRecord(ledgers=[LedgerInfo(ledger_id=3), LedgerInfo(ledger_id=4)])
    change_metadata(data, [(TOPIC_PATH, encode(topic))], [])
    before = served(data)
    values = RocksKeyValue(str(data / "index"))
    index = LedgerIndex(values)
    index.load()
    index.set_state(3, State(DELETED, index.marks[0]))
    index.purge()
    values.close()
    assert {ledger_id for ledger_id, _ in served(data)} == {4}
    code, out, _ = call("rebuild-index", "--data-dir", data)
    assert code == 0, out
    assert served(data) == before
    assert call("verify", "--data-dir", data)[0] == 0


def test_no_bookie_is_made_where_none_is(data: Path, call: Call) -> None:
    shutil.rmtree(data / "bookie")
    names = {path.name for path in data.iterdir()}
    for lost in (False, True):
        if lost:
            (data / "metadata/CURRENT").write_text("nothing")
        code, out, err = call("rebuild-index", "--data-dir", data)
        assert (code, out) == (4, "")
        assert f"{data}/bookie: there is no bookie directory to make an index of" in err
        assert {path.name for path in data.iterdir()} - {"lock"} == names - {"lock"}


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_logs_and_journals_are_listed_without_an_index(crashed: Path, call: Call, how: str) -> None:
    before = {
        command: lines(call(command, "--data-dir", crashed, "--json")[1])
        for command in ("entry-logs", "journals")
    }
    if how == "lost":
        shutil.rmtree(crashed / "index")
    else:
        (crashed / "index/CURRENT").write_text("nothing")
    for command, key in (("entry-logs", "log"), ("journals", "journal")):
        code, out, err = call(command, "--data-dir", crashed, "--json")
        assert code == 1
        assert f"geminga bookie: {crashed}/index: " in err
        assert [row[key] for row in lines(out)] == [row[key] for row in before[command]]
        assert call(command, "--data-dir", crashed)[0] == 1
    assert "mark: not known" in call("journals", "--data-dir", crashed)[1]


def test_metadata_that_cannot_be_opened_is_damage(data: Path, call: Call) -> None:
    (data / "metadata/CURRENT").write_text("nothing")
    code, out, _ = call("verify", "--data-dir", data, "--json")
    [finding, last] = lines(out)
    assert (code, finding["path"], last["counts"]["findings"]) == (1, str(data / "metadata"), 1)
    assert "only a backup has what it said" in finding["text"]


def test_entries_that_the_metadata_promises_and_no_file_has_are_damage(data: Path, call: Call) -> None:
    metadata = RocksKeyValue(str(data / "metadata"))
    topic = ManagedLedgerRecord(
        ledgers=[
            LedgerInfo(ledger_id=3, entries=120, closed_ms=1),
            LedgerInfo(ledger_id=4, entries=60, closed_ms=1),
        ]
    )
    encoded = encode(topic)

    async def put() -> None:
        store = MetadataStore(metadata)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.put(TOPIC_PATH, encoded)
            nursery.cancel_scope.cancel()

    trio.run(put)
    metadata.close()
    assert call("verify", "--data-dir", data)[0] == 0
    for path in (data / "bookie/entry-logs").iterdir():
        path.unlink()
    shutil.rmtree(data / "bookie/journal")
    (data / "bookie/journal").mkdir()
    code, out, _ = call("rebuild-index", "--data-dir", data)
    assert code == 1
    said = f"ledger 3 of {TOPIC} has 0 entries, and 120 were confirmed"
    assert said in out
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert said in out
