"""The door to RocksDB: the contract that the simulated one shares, and what RocksDB does with damage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rocksdict
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.errors import CorruptData, StorageError
from geminga.storage.key_value import KeyValue, RocksKeyValue
from geminga.storage.rocksdb import BlockCache
from simulation.disk.sim_key_value import SimKeyValue


@pytest.fixture(params=["rocks", "sim"])
def key_value(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValue]:
    if request.param == "sim":
        yield SimKeyValue()
        return
    opened = RocksKeyValue(str(tmp_path / "db"))
    yield opened
    opened.close()


def test_batches_put_then_delete(key_value: KeyValue) -> None:
    key_value.write([(b"a", b"1"), (b"b", b""), (b"c", b"3")], [b"c", b"none"], sync=True)
    assert [key_value.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"", None]
    key_value.write([], [b"a"], sync=False)
    key_value.write([], sync=True)
    assert list(key_value.scan(b"", b"\xff")) == [(b"b", b"")]


def test_scans_are_half_open_and_in_byte_order(key_value: KeyValue) -> None:
    keys = [b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"\xfe\xff"]
    key_value.write([(key, key) for key in reversed(keys)], sync=False)
    assert [key for key, _ in key_value.scan(b"", b"\xff")] == keys
    assert [key for key, _ in key_value.scan(b"a", b"b")] == [b"a", b"a\x00", b"a\xff"]
    assert list(key_value.scan(b"b", b"a")) == []
    assert list(key_value.scan(b"c", b"d")) == []


def test_a_scan_is_a_snapshot(key_value: KeyValue) -> None:
    key_value.write([(b"a", b"1"), (b"c", b"1")], sync=False)
    scan = key_value.scan(b"", b"\xff")
    assert next(scan) == (b"a", b"1")
    key_value.write([(b"b", b"2"), (b"c", b"2")], sync=False)
    assert list(scan) == [(b"c", b"1")]


def test_each_of_many_scans_keeps_its_end(key_value: KeyValue) -> None:
    """RocksDB's iterators only refer to the bytes of their bounds."""
    keys = [b"%05d" % number for number in range(5000)]
    key_value.write([(key, key) for key in keys], sync=False)
    scans = [key_value.scan(keys[10 * number], keys[10 * number + 9]) for number in range(400)]
    assert [next(scan)[0] for scan in scans] == [keys[10 * number] for number in range(400)]
    for number, scan in enumerate(scans):
        assert [key for key, _ in scan] == keys[10 * number + 1 : 10 * number + 9]


def test_a_scan_does_not_look_behind_its_end(tmp_path: Path) -> None:
    """What was deleted there costs nothing: a look with 100,000 deleted rows behind it and one without."""
    key_value = RocksKeyValue(str(tmp_path / "map"))
    keys = [b"%08d" % number for number in range(100_000)]
    key_value.write([(key, b"") for key in keys], sync=False)
    key_value.write([], keys[10:], sync=False)

    def cpu_s(end: bytes) -> float:
        since_s = time.thread_time()
        for _ in range(20):
            assert len(list(key_value.scan(keys[0], end))) == 10
        return time.thread_time() - since_s

    assert cpu_s(keys[10]) < cpu_s(keys[-1]) / 20
    key_value.close()


def test_last_before(key_value: KeyValue) -> None:
    key_value.write([(b"b", b"1"), (b"d", b"2")], sync=False)
    assert key_value.last_before(b"d", b"") == (b"b", b"1")
    assert key_value.last_before(b"d\x00", b"") == (b"d", b"2")
    assert key_value.last_before(b"c", b"b") == (b"b", b"1")
    assert key_value.last_before(b"c", b"b\x00") is None
    assert key_value.last_before(b"b", b"") is None
    assert key_value.last_before(b"z", b"e") is None


def test_closed_it_refuses(key_value: KeyValue) -> None:
    key_value.write([(b"a", b"1"), (b"b", b"2")], sync=False)
    scan = key_value.scan(b"", b"\xff")
    assert next(scan) == (b"a", b"1")
    key_value.close()
    key_value.close()
    with pytest.raises(StorageError, match="closed"):
        next(scan)
    for use in (
        lambda: key_value.get(b"a"),
        lambda: list(key_value.scan(b"", b"b")),
        lambda: key_value.last_before(b"b", b""),
        lambda: key_value.write([], sync=True),
        key_value.flush,
    ):
        with pytest.raises(StorageError, match="closed"):
            use()


_keys = st.binary(max_size=3)
_programs = st.lists(
    st.tuples(
        st.dictionaries(_keys, st.binary(max_size=4), max_size=4),
        st.lists(_keys, max_size=3),
        st.booleans(),
        st.tuples(_keys, _keys),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(_programs)
def test_rocks_and_sim_agree_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    program: list[tuple[dict[bytes, bytes], list[bytes], bool, tuple[bytes, bytes]]],
) -> None:
    path = tmp_path_factory.mktemp("agree") / "db"
    model: dict[bytes, bytes] = {}
    sim, rocks = SimKeyValue(), RocksKeyValue(str(path))
    try:
        for puts, deletes, reopen, (start, end) in program:
            model.update(puts)
            for key in deletes:
                model.pop(key, None)
            expected = sorted(row for row in model.items() if start <= row[0] < end)
            if reopen:
                rocks.close()
                rocks = RocksKeyValue(str(path))
            for key_value in (sim, rocks):
                key_value.write(puts.items(), deletes, sync=False)
                assert list(key_value.scan(start, end)) == expected
                assert key_value.last_before(end, start) == (expected[-1] if expected else None)
                assert key_value.get(start) == model.get(start)
    finally:
        rocks.close()
        shutil.rmtree(path)


def test_an_unfinished_scan_does_not_keep_the_directory(tmp_path: Path) -> None:
    first = RocksKeyValue(str(tmp_path / "db"))
    first.write([(b"a", b"1"), (b"b", b"2")], sync=True)
    scans = [first.scan(b"", b"\xff") for _ in range(3)]
    assert [next(scan) for scan in scans] == [(b"a", b"1")] * 3
    first.close()
    second = RocksKeyValue(str(tmp_path / "db"))
    assert second.get(b"b") == b"2"
    second.close()
    with pytest.raises(StorageError):
        next(scans[0])


def in_another_process(script: str, *arguments: str, before: tuple[str, ...] = ()) -> str:
    """What the script printed."""
    command = [*before, sys.executable, "-c", textwrap.dedent(script), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = RocksKeyValue(path)
    with pytest.raises(StorageError, match="in use by another process, or opened twice"):
        RocksKeyValue(path)
    script = """
        import sys
        from geminga.errors import StorageError
        from geminga.storage.key_value import RocksKeyValue
        try:
            RocksKeyValue(sys.argv[1])
        except StorageError as error:
            print(error)
    """
    assert f"{path}: in use by another process" in in_another_process(script, path)
    first.close()


# --- damage ---


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A closed database: 5000 rows in tables, nothing in the log."""
    path = tmp_path / "tables"
    key_value = RocksKeyValue(str(path))
    key_value.write([(b"k%05d" % n, b"v%05d" % n * 3) for n in range(5000)], sync=True)
    key_value.close()
    return path


def flipped(path: Path, offset: int, to: Path) -> Path:
    """A copy of the directory with one bit of its only table flipped."""
    shutil.copytree(path, to)
    (table,) = to.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[offset % len(content)] ^= 1 << offset % 8
    table.write_bytes(content)
    return to


def test_a_flipped_bit_never_shortens_a_scan(tables: Path, tmp_path: Path) -> None:
    (table,) = tables.glob("*.sst")
    size_bytes = table.stat().st_size
    refused = 0
    for trial in range(60):
        path = flipped(tables, size_bytes * trial // 60 + trial, tmp_path / f"flip{trial}")
        try:
            key_value = RocksKeyValue(str(path))
        except StorageError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
            continue
        try:
            rows = list(key_value.scan(b"", b"\xff"))
            assert rows == [(b"k%05d" % n, b"v%05d" % n * 3) for n in range(5000)], trial
        except CorruptData as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
        key_value.close()
    assert refused > 50


def test_a_flipped_bit_is_met_by_get_and_last_before(tables: Path, tmp_path: Path) -> None:
    path = flipped(tables, 100, tmp_path / "flip")
    key_value = RocksKeyValue(str(path))
    with pytest.raises(CorruptData, match="cannot read"):
        key_value.get(b"k00000")
    with pytest.raises(CorruptData, match="cannot read"):
        key_value.last_before(b"k00001", b"")
    assert key_value.get(b"k04999") == b"v04999" * 3
    key_value.close()


def test_why_scans_ask_for_the_status(tables: Path, tmp_path: Path) -> None:
    """The library's own iteration ends early and says nothing. Should that change, scans may be simpler."""
    path = flipped(tables, 50_000, tmp_path / "flip")
    database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
    assert 0 < len(list(database.items())) < 5000
    database.close()


KILLED = """
    import os, sys
    from geminga.storage.key_value import RocksKeyValue
    key_value = RocksKeyValue(sys.argv[1])
    for n in range(100):
        key_value.write([(b"k%03d" % n, b"v" * 100)], sync=True)
    print("synced", flush=True)
    os._exit(0)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A database whose process was killed: 100 synced batches, all of them in the write-ahead log."""
    path = tmp_path / "killed"
    assert in_another_process(KILLED, str(path)) == "synced\n"
    return path


def damage_log(path: Path, damage: Callable[[bytearray], bytearray]) -> None:
    (file,) = (file for file in path.glob("*.log") if file.stat().st_size)
    file.write_bytes(damage(bytearray(file.read_bytes())))


def rows_or_refusal(path: Path) -> int:
    """How many rows there are after opening, always the oldest; -1 if the directory is refused."""
    try:
        key_value = RocksKeyValue(str(path))
    except CorruptData as error:
        assert str(path) in str(error)  # noqa: PT017
        return -1
    keys = [key for key, _ in key_value.scan(b"", b"\xff")]
    assert keys == [b"k%03d" % n for n in range(len(keys))]
    key_value.close()
    return len(keys)


def test_a_killed_process_loses_nothing_that_was_synced(log: Path) -> None:
    assert rows_or_refusal(log) == 100


def test_a_flipped_bit_in_the_log_never_takes_what_was_synced(log: Path, tmp_path: Path) -> None:
    (file,) = (file for file in log.glob("*.log") if file.stat().st_size)
    record_bytes = file.stat().st_size // 100
    places = [
        record * record_bytes + byte
        for record in (0, 1, 50, 98, 99)
        for byte in (0, 4, 5, 6, 7, 20, 60, 110, 140)
    ]
    refused = 0
    for place in places:
        for bit in (0, 2, 6):
            copy = tmp_path / f"flip{place}-{bit}"
            shutil.copytree(log, copy)

            def flip(content: bytearray, place: int = place, bit: int = bit) -> bytearray:
                content[place] ^= 1 << bit
                return content

            damage_log(copy, flip)
            rows = rows_or_refusal(copy)
            assert rows in (-1, 100), f"byte {place} bit {bit}: {rows} rows"
            refused += rows == -1
    assert refused > 0.9 * len(places) * 3


@pytest.mark.parametrize(
    ("damage", "rows"),
    [
        (lambda content: content[:-10], 100),
        (lambda content: content[:-60], 99),
        (lambda content: content + bytes(5000), 100),
        (lambda content: content + b"\x17torn" * 1000, 100),
        (lambda content: content[:-70] + bytes(70), 99),
    ],
    ids=["mark", "record", "zeros", "garbage", "zeroed"],
)
def test_a_torn_end_of_the_log_is_cut(log: Path, damage: Callable[[bytearray], bytearray], rows: int) -> None:
    damage_log(log, damage)
    assert rows_or_refusal(log) == rows


def test_pages_lost_from_what_was_never_synced_are_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "db"
    in_another_process(
        KILLED.replace("sync=True)", "sync=n < 20)").replace('b"v" * 100', 'b"v" * 2000'), str(path)
    )
    (file,) = (file for file in path.glob("*.log") if file.stat().st_size)
    for page in range(20, file.stat().st_size // 4096, 5):
        copy = tmp_path / f"page{page}"
        shutil.copytree(path, copy)

        def lose(content: bytearray, page: int = page) -> bytearray:
            content[page * 4096 : (page + 1) * 4096] = bytes(4096)
            return content

        damage_log(copy, lose)
        assert rows_or_refusal(copy) >= 20


def test_a_flipped_bit_in_the_manifest_is_refused_or_harmless(tables: Path, tmp_path: Path) -> None:
    """Some of these make RocksDB loop for ever while it opens."""
    for _ in range(2):
        RocksKeyValue(str(tables)).close()
    (manifest,) = tables.glob("MANIFEST-*")
    size_bytes = manifest.stat().st_size
    refused = 0
    for place in range(0, size_bytes, 7):
        for bit in (1, 2):
            copy = tmp_path / f"flip{place}-{bit}"
            shutil.copytree(tables, copy)
            content = bytearray(manifest.read_bytes())
            content[place] ^= 1 << bit
            (copy / manifest.name).write_bytes(content)
            try:
                key_value = RocksKeyValue(str(copy))
                assert sum(1 for _ in key_value.scan(b"", b"\xff")) == 5000
                key_value.close()
            except StorageError:
                refused += 1
    assert refused > size_bytes // 7


# --- a slow or failing disk, by the kernel's hand ---

strace = shutil.which("strace")
needs_strace = pytest.mark.skipif(strace is None, reason="needs strace to delay and fail system calls")


def inject(fault: str) -> tuple[str, ...]:
    assert strace is not None
    return (strace, "-f", "-o", os.devnull, "-e", "trace=fdatasync", "-e", f"inject=fdatasync:{fault}")


@needs_strace
def test_a_slow_sync_does_not_stop_other_threads(tmp_path: Path) -> None:
    script = """
        import sys, threading
        from geminga.storage.key_value import RocksKeyValue
        key_value = RocksKeyValue(sys.argv[1])
        def write():
            for n in range(2):
                key_value.write([(b"k", b"v")], sync=True)
        thread = threading.Thread(target=write)
        turns = 0
        thread.start()
        while thread.is_alive():
            thread.join(0.001)
            turns += 1
        print(turns)
        key_value.close()
    """
    output = in_another_process(script, str(tmp_path / "db"), before=inject("delay_enter=500000"))
    assert int(output) > 30, "one or two for each write if it kept all other threads waiting"


@needs_strace
def test_a_failed_sync_is_told_and_nothing_is_written_after_it(tmp_path: Path) -> None:
    script = """
        import sys
        from geminga.errors import StorageError
        from geminga.storage.key_value import RocksKeyValue
        key_value = RocksKeyValue(sys.argv[1])
        for n in range(30):
            try:
                key_value.write([(b"k%d" % n, b"v")], sync=True)
                print("durable")
            except StorageError as error:
                print(error)
        key_value.close()
    """
    path = str(tmp_path / "db")
    lines = in_another_process(script, path, before=inject("error=EIO:when=20+")).splitlines()
    assert lines[0] == "durable"
    assert len(lines) == 30
    failed = lines.index(next(line for line in lines if line != "durable"))
    assert lines[failed].startswith(f"{path}: cannot write: IO error")
    assert all("refused after an earlier failure" in line for line in lines[failed + 1 :])


# --- what it costs ---


def test_memory_is_bounded_and_the_cache_shared(tmp_path: Path) -> None:
    cache = BlockCache(1 << 20)
    databases = [
        RocksKeyValue(str(tmp_path / name), block_cache=cache, write_buffer_bytes=1 << 20) for name in "ab"
    ]
    for key_value in databases:
        for batch in range(20):
            key_value.write([(b"%d/%05d" % (batch, n), bytes(100)) for n in range(2000)], sync=False)
        assert sum(1 for _ in key_value.scan(b"", b"\xff")) == 40_000
        assert key_value.memory_bytes() < 6 << 20
    assert cache.usage_bytes() < 2 << 20
    for key_value in databases:
        key_value.close()


def test_for_reading_only_it_changes_nothing(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(log, path)
    before = {name.name: name.read_bytes() for name in path.iterdir()}
    reader = RocksKeyValue(str(path), read_only=True)
    found = list(reader.scan(b"", b"\xff" * 9))
    assert found
    with pytest.raises(StorageError, match="reading only"):
        reader.write([(b"x", b"y")], sync=True)
    with pytest.raises(StorageError, match="reading only"):
        reader.flush()
    reader.close()
    assert {name.name: name.read_bytes() for name in path.iterdir()} == before
    writer = RocksKeyValue(str(path))
    assert list(writer.scan(b"", b"\xff" * 9)) == found
    writer.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_cannot_be_opened_is_named(log: Path, tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "copy"
    shutil.copytree(log, path)
    (path / "rocksdict-config.json").unlink()
    (path / "rocksdict-config.json").mkdir()
    with pytest.raises(StorageError, match="rocksdict-config.json: cannot open"):
        RocksKeyValue(str(path), read_only=read_only)


def test_a_directory_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(StorageError, match="the name is not UTF-8"):
        RocksKeyValue(path)
    assert not os.path.exists(path)
