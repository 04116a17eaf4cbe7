"""One flipped bit in a copy of a real data directory: bookie, RocksDB, metadata and cursor, all files.

    python -m tests.chaos.bit_flips --flips 20000 --seed 1

Two directories are made once: one closed in order, one copied while it was open, as a kill leaves it. Each
flip takes a copy, flips a bit of one kind of file, and opens it as the broker does. What is then read is
right, or an error of ours says what is damaged; a cursor may fall back, and never runs ahead. Damage to an
index costs nothing at all: it is made anew, at this start or the next. Only damaged metadata may be refused.
Exit code 1 for anything else, and for an error that is not ours. Prints a table of what became of each kind.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import trio

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES, TRAILER_BYTES, decode_trailer
from geminga.bookie.entry_logs.scan import read_rows
from geminga.bookie.index.database import IndexDatabase, opened_with
from geminga.bookie.journal.journal_format import FILE_HEADER, FILE_HEADER_BYTES, FILE_HEADERS_BYTES_MAX
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.clock import RealClock
from geminga.errors import GemingaError
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.managed_ledger.orphans import sweep_orphan_ledgers
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.position import Position
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from simulation.campaign.campaign import process_pool

TOPIC = "/managed-ledgers/public/default/persistent/orders"
SETTINGS = ManagedLedgerSettings(ledger_entries_max=12, rollover_min_ms=0, cursor_ledger_entries_max=4)
SMALL = BookieSettings(
    journal_file_bytes=16 * 1024,
    journal_allocate_bytes=16 * 1024,
    write_cache_bytes=16 * 1024,
    entry_log_bytes=8 * 1024,
)
DATABASES = ("index", "metadata")
DAMAGE_NOTE = "index.damage"
KINDS = (
    "journal",
    "journal header",
    "entry log header",
    "entry log body",
    "entry log footer",
    "cursor ledger",
    *(f"{database} {part}" for database in DATABASES for part in ("SST", "WAL", "MANIFEST", "CURRENT")),
)
_PATTERNS = {"SST": "*.sst", "WAL": "*.log", "MANIFEST": "MANIFEST-*", "CURRENT": "CURRENT"}


@dataclass
class Golden:
    """A directory, and what is in it."""

    path: Path
    messages: dict[Position, bytes] = field(default_factory=dict)
    acknowledged: set[Position] = field(default_factory=set)
    last_group: int = 0
    """Entries of the last journal group, which damage may make look like a torn end."""
    places: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    """For each kind: file, and the range of bytes that may be hit."""


class WrongAnswer(AssertionError):
    """Damage was believed."""


class _Listener:
    def __init__(self) -> None:
        self.confirmed: dict[Position, bytes] = {}
        self.progress = trio.Event()

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        for entry_id, body in enumerate(contexts, first_entry_id):
            self.confirmed[Position(ledger_id, entry_id)] = body
        self.progress.set()
        self.progress = trio.Event()

    def on_add_failed(self, error: Exception, contexts: list[Any]) -> None:
        raise AssertionError(error)


class Opened(NamedTuple):
    bookie: Bookie
    ledger: ManagedLedger
    index: IndexDatabase


@asynccontextmanager
async def opened(path: Path, *, create: bool, close: bool) -> AsyncIterator[Opened]:
    """As the broker opens a directory; with `close` left in order, else as it is."""
    disk = RealDisk()
    with contextlib.ExitStack() as held:
        tree = RocksKeyValue(str(path / "metadata"))
        held.callback(tree.close)
        index = IndexDatabase(disk, str(path / "index"))
        held.callback(index.close)
        async with trio.open_nursery() as nursery:
            metadata = MetadataStore(tree)
            await nursery.start(metadata.run)
            bookie = await opened_with(
                disk, [index], lambda: Bookie.open(disk, index, str(path / "bookie"), SMALL)
            )
            await nursery.start(bookie.run)
            await sweep_orphan_ledgers(bookie, metadata)
            ledger = await ManagedLedger.open(
                TOPIC,
                bookie,
                metadata,
                LedgerIds(metadata),
                RealClock(),
                SETTINGS,
                tail_cache=TailCache(),
                create=create,
            )
            ledger.attach(_Listener())
            ledger.life.run_in(nursery)
            yield Opened(bookie, ledger, index)
            if close:
                await ledger.life.close()
                await bookie.close()
            nursery.cancel_scope.cancel()


async def _publish(golden: Golden, ledger: ManagedLedger, sizes: Sequence[int]) -> list[Position]:
    listener = ledger.listener
    assert isinstance(listener, _Listener)
    wanted = len(listener.confirmed) + len(sizes)
    for size in sizes:
        number = len(golden.messages) + len(listener.confirmed) + size
        body = (f"message {number} of {size} bytes, " * (size // 16 + 1)).encode()[: size + 20]
        ledger.append([body], body)
    while len(listener.confirmed) < wanted:
        await listener.progress.wait()
    new = list(listener.confirmed)[wanted - len(sizes) :]
    golden.messages |= {position: listener.confirmed[position] for position in new}
    return new


async def _acknowledge(golden: Golden, cursor: Any, positions: Sequence[Position]) -> None:
    cursor.acknowledge(positions)
    golden.acknowledged |= set(positions)
    await cursor.persist()


async def make_golden(directory: Path) -> list[Golden]:
    """The closed directory and the killed one."""
    live = Golden(directory / "live")
    (live.path / "metadata").mkdir(parents=True)
    async with opened(live.path, create=True, close=True) as (bookie, ledger, _):
        cursor = await ledger.open_cursor("a", initial="earliest")
        for size in (10, 200, 700):
            new = await _publish(live, ledger, [size] * 9)
            await _acknowledge(live, cursor, [*new[:2], new[4]])
            await bookie.flush()
    closed = Golden(directory / "closed", dict(live.messages), set(live.acknowledged))
    shutil.copytree(live.path, closed.path)
    async with opened(live.path, create=False, close=True) as (bookie, ledger, _):
        cursor = ledger.cursors["a"]
        for size in (30, 400, 90):
            new = await _publish(live, ledger, [size] * 6)
            await _acknowledge(live, cursor, [new[1]])
            if size == 30:
                await bookie.flush()
        new = await _publish(live, ledger, [100] * 4)
        await _acknowledge(live, cursor, new[:3])
        await _publish(live, ledger, [60])
        killed = Golden(directory / "killed", dict(live.messages), set(live.acknowledged), last_group=1)
        shutil.copytree(live.path, killed.path)
    for golden in (closed, killed):
        golden.places = _places(golden.path, {position.ledger_id for position in golden.messages})
    assert all(any(golden.places.get(kind) for golden in (closed, killed)) for kind in KINDS)
    return [closed, killed]


def _places(path: Path, data_ledgers: set[int]) -> dict[str, list[tuple[str, int, int]]]:
    places: dict[str, list[tuple[str, int, int]]] = {kind: [] for kind in KINDS}

    def add(kind: str, file: Path, begin: int, end: int) -> None:
        if end > begin:
            places[kind].append((str(file.relative_to(path)), begin, end))

    for file in sorted((path / "bookie" / "journal").glob("*.journal")):
        content = file.read_bytes().rstrip(b"\0")
        add("journal", file, 0, len(content))
        # The places that say something; a start finds both copies, or neither if the file was not begun.
        for copy in range(0, min(len(content), FILE_HEADERS_BYTES_MAX), FILE_HEADER_BYTES):
            add("journal header", file, copy, copy + FILE_HEADER.size)
    disk = RealDisk()
    for file in sorted((path / "bookie" / "entry-logs").glob("*.log")):
        content = file.read_bytes()
        trailer = decode_trailer(content[-TRAILER_BYTES:])
        body_end = trailer[0] if trailer else len(content)
        add("entry log header", file, 0, HEADER_BYTES)
        add("entry log body", file, HEADER_BYTES, body_end)
        add("entry log footer", file, body_end, len(content))
        opened_file = disk.open(str(file))
        for ledger_id, row in read_rows(opened_file, int(file.stem), row_entries_max=100):
            if ledger_id not in data_ledgers:
                add("cursor ledger", file, row.offset, row.offset + row.ends[-1])
        opened_file.close()
    for database in DATABASES:
        for part, pattern in _PATTERNS.items():
            for file in sorted((path / database).glob(pattern)):
                add(f"{database} {part}", file, 0, file.stat().st_size)
    return places


async def _judge(golden: Golden, path: Path, kind: str) -> str:
    """What became of the damage. Raises `WrongAnswer`."""
    outcomes: set[str] = set()
    index_damage = ""
    try:
        index_damage = await _start_and_read(golden, path, outcomes)
    except BaseException as error:
        if not (path / DAMAGE_NOTE).exists() or not _all_ours(error):
            raise
        index_damage = str(error)
    if index_damage:
        # The broker ends there. What it answered is checked; the next start has to mend it.
        outcomes = set()
        if await _start_and_read(golden, path, outcomes) or "index rebuilt" not in outcomes:
            raise WrongAnswer(f"{index_damage}, and the next start has not mended it")
        outcomes = {"at the second start" if each == "index rebuilt" else each for each in outcomes}
        outcomes.add("index rebuilt")
    if kind.startswith("index") and outcomes - {"index rebuilt", "at the second start"}:
        raise WrongAnswer(f"damage to the index alone has cost something: {sorted(outcomes)}")
    return ", ".join(sorted(outcomes)) or "harmless"


async def _start_and_read(golden: Golden, path: Path, outcomes: set[str]) -> str:
    """Read all; returns what it found damaged in the index."""
    missing = 0
    async with opened(path, create=False, close=False) as (bookie, ledger, index):
        if bookie.recovery.damages or bookie.recovery.logs_missing or bookie.recovery.logs_damaged:
            outcomes.add("named at the start")
        if bookie.recovery.headers_restored:
            outcomes.add("header restored")
        if bookie.recovery.index_rebuilt:
            outcomes.add("index rebuilt")
        cursor = ledger.cursors.get("a")
        if cursor is None:
            raise WrongAnswer("the cursor is gone")
        for position, body in golden.messages.items():
            if position not in golden.acknowledged and cursor.is_acknowledged(position):
                raise WrongAnswer(f"{position} was never acknowledged, and the cursor has passed it")
            if position in golden.acknowledged and not cursor.is_acknowledged(position):
                outcomes.add("cursor fell back")
            try:
                entries = await ledger.read_positions([position])
            except GemingaError:
                if index.damage:
                    return index.damage
                outcomes.add("named when read")
                continue
            if not entries:
                missing += 1
            elif entries[0].body != body:
                raise WrongAnswer(f"{position} is {entries[0].body[:40]!r}, was {body[:40]!r}")
        if missing > golden.last_group:
            raise WrongAnswer(f"{missing} messages are gone without a word")
        if missing:
            outcomes.add("cut like a torn end")
        return index.damage


def _all_ours(error: BaseException) -> bool:
    found = leaves(error)
    return bool(found) and all(isinstance(leaf, GemingaError) for leaf in found)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [] if isinstance(error, trio.Cancelled) else [error]


def hit(path: Path, offset: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def flip(golden: Sequence[Golden], seed: int, kind: str | None = None) -> tuple[str, str]:
    """(kind, what became of it). Raises `WrongAnswer`, or what came out that is no error of ours."""
    chance = random.Random(f"bit {seed}")
    kind = kind or KINDS[seed % len(KINDS)]
    directory = chance.choice([g for g in golden if g.places[kind]])
    name, begin, end = chance.choice(directory.places[kind])
    offset, bit = chance.randrange(begin, end), chance.randrange(8)
    with tempfile.TemporaryDirectory(prefix="flip-") as place:
        copy = Path(place) / "data"
        shutil.copytree(directory.path, copy)
        hit(copy / name, offset, bit)
        try:
            return kind, trio.run(_judge, directory, copy, kind)
        except BaseException as error:
            found = leaves(error)
            if kind.startswith("metadata") and _all_ours(error):
                return kind, "refused to open"
            where = f"seed {seed}, {directory.path.name}/{name}, byte {offset}, bit {bit}"
            raise WrongAnswer(f"{where}: {'; '.join(map(repr, found))}") from error


def flip_range(golden: Sequence[Golden], seeds: range) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Outcomes counted, and what was wrong."""
    logging.disable(logging.CRITICAL)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    try:
        for seed in seeds:
            try:
                counts[flip(golden, seed)] += 1
            except WrongAnswer as error:
                wrong.append(str(error))
    finally:
        logging.disable(logging.NOTSET)
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.bit_flips", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    started = said = time.monotonic()
    first = options.seed * 10**9
    with tempfile.TemporaryDirectory(prefix="golden-") as place, process_pool(options.jobs) as pool:
        golden = trio.run(make_golden, Path(place))
        chunks = [
            range(start, min(start + 50, first + options.flips))
            for start in range(first, first + options.flips, 50)
        ]
        for part, errors in pool.map(flip_range, [golden] * len(chunks), chunks):
            counts += part
            wrong += errors
            for error in errors:
                print(f"WRONG {error}", flush=True)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                print(f"{counts.total()} of {options.flips}, {counts.total() / (said - started):.0f}/s")
                sys.stdout.flush()
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:18} {count:6}  {outcome}")
    print(f"{counts.total()} flips right or refused, {len(wrong)} wrong, {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
