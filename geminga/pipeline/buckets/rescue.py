"""Reads every entry of a bookie's files once. docs/rescue.md.

An entry that is in several files is taken from the first one in which it is valid. So all files are read
twice: to find out which files these are, and for the entries.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from geminga.pipeline.buckets.rescue_columns import ENTRIES, EntryColumns
from geminga.pipeline.buckets.rescue_files import Hole, Plan, Slice, plan, read_slice
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import join
from geminga.pipeline.files.stored_disk import disk_by_url
from geminga.storage.disk import Disk

BATCH_BYTES_MAX: Final = 32 << 20
BATCH_ENTRIES_MAX: Final = 20_000


class Inventory(NamedTuple):
    """What a slice holds."""

    entries: dict[int, bytes]
    """Entry ids by ledger, each a serialised `BitMap64`."""
    holes: list[Hole]
    topics: dict[int, str]
    """By ledger, as far as the slice itself names it."""


def take_inventory(disk: Disk, part: Slice) -> Inventory:
    """Reads and checks all of the slice."""
    ledgers: dict[int, BitMap64] = defaultdict(BitMap64)
    holes: list[Hole] = []
    topics: dict[int, str] = {}
    for entry in read_slice(disk, part, holes, topics):
        ledgers[entry.ledger_id].add(entry.entry_id)
    return Inventory({ledger_id: _packed(ids) for ledger_id, ids in ledgers.items()}, holes, topics)


def _packed(ids: BitMap64) -> bytes:
    """A few bytes for each run of ids, however many entries there are."""
    ids.run_optimize()
    data: bytes = ids.serialize()
    return data


def all_topics(known: Plan, inventories: Iterable[Inventory]) -> dict[int, str]:
    """By ledger, as far as any file names it."""
    topics = dict(known.topics)
    for inventory in inventories:
        topics |= inventory.topics
    return topics


def owned(inventories: Sequence[Inventory]) -> list[dict[int, bytes]]:
    """Of each slice the entries to take from it: those that no slice before has. Serialised as in
    `Inventory`.
    """
    seen: dict[int, BitMap64] = defaultdict(BitMap64)
    found = []
    for inventory in inventories:
        own = {}
        for ledger_id, data in inventory.entries.items():
            ids = BitMap64.deserialize(data)
            new = ids - seen[ledger_id]
            if new:
                own[ledger_id] = _packed(new)
            seen[ledger_id] |= ids
        found.append(own)
    return found


def rescued_batches(
    disk: Disk, part: Slice, own: dict[int, bytes], topics: dict[int, str]
) -> Iterator[pa.RecordBatch]:
    """The entries of a slice that are its own, as batches of `rescue_columns.ENTRIES`."""
    left = {ledger_id: BitMap64.deserialize(data) for ledger_id, data in own.items()}
    columns = EntryColumns(part.path)
    for entry in read_slice(disk, part, []):
        mine = left.get(entry.ledger_id)
        if mine is None or entry.entry_id not in mine:
            continue
        mine.discard(entry.entry_id)
        columns.add(topics.get(entry.ledger_id), entry.ledger_id, entry.entry_id, entry.offset, entry.body)
        if columns.body_bytes >= BATCH_BYTES_MAX or columns.rows >= BATCH_ENTRIES_MAX:
            yield columns.take()
    if columns.rows:
        yield columns.take()


def write_rescued(
    files: Files, directory: str, item: tuple[int, Slice, dict[int, bytes], dict[int, str]]
) -> str | None:
    """The own entries of a slice as a Parquet file below `directory`; its name, None if there are none.

    Names are not used twice, so a slice may be written again. Raises `StorageError`.
    """
    number, part, own, topics = item
    batches = rescued_batches(disk_by_url(files), part, own, topics)
    first = next(batches, None)
    if first is None:
        return None
    name = f"part-{number:05d}-{uuid.uuid4().hex}.parquet"
    with (
        files.create(join(directory, name)) as sink,
        pq.ParquetWriter(sink, ENTRIES, compression="zstd", write_page_checksum=True) as writer,
    ):
        for batch in chain([first], batches):
            writer.write_batch(batch)
    return name


def rescue_batches(disk: Disk, directories: Sequence[str], holes: list[Hole]) -> Iterator[pa.RecordBatch]:
    """Everything below the directories in this process, one slice after the other."""
    known = plan(disk, directories)
    inventories = [take_inventory(disk, part) for part in known.slices]
    holes += known.holes
    holes += (hole for inventory in inventories for hole in inventory.holes)
    topics = all_topics(known, inventories)
    for part, own in zip(known.slices, owned(inventories), strict=True):
        yield from rescued_batches(disk, part, own, topics)


class Held(NamedTuple):
    """What is to be told of a ledger."""

    topic: str | None
    ledger_id: int
    entries: int
    missing: list[tuple[int, int]]
    """First and last of each run of entry ids that is not there, below the greatest that is."""


def ledgers_in(inventories: Iterable[Inventory], topics: dict[int, str]) -> list[Held]:
    """All ledgers with an entry, by topic; those without a known topic last."""
    ledgers: dict[int, BitMap64] = defaultdict(BitMap64)
    for inventory in inventories:
        for ledger_id, data in inventory.entries.items():
            ledgers[ledger_id] |= BitMap64.deserialize(data)
    held = [Held(topics.get(id_), id_, len(ids), _gaps(ids)) for id_, ids in ledgers.items()]
    return sorted(held, key=lambda one: (one.topic is None, one.topic or "", one.ledger_id))


def _gaps(ids: BitMap64) -> list[tuple[int, int]]:
    if len(ids) == ids.max() + 1:
        return []
    there = np.array(ids.to_array(), np.uint64)
    before = np.concatenate((np.array([-1], np.int64), there[:-1].astype(np.int64)))
    firsts, lasts = before + 1, there.astype(np.int64) - 1
    return [(int(firsts[at]), int(lasts[at])) for at in np.flatnonzero(firsts <= lasts)]
