"""Rows of one exported partition in the order of the topic, out of all its files, a few of them at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from geminga.errors import CorruptData
from geminga.limits import MIB
from geminga.pipeline.columns.columns import BATCH_INDEX, ENTRY_ID, LEDGER_ID, TOPIC
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.export.plan import FILE_COLUMNS
from geminga.pipeline.files.files import Files

ORDER: Final = (LEDGER_ID, ENTRY_ID, BATCH_INDEX)
"""What rows of a partition are sorted by."""
BATCH_BYTES: Final = 8 * MIB
BATCH_ROWS_MAX: Final = 10_000
Key: TypeAlias = tuple[int, int, int]
"""Ledger, entry, batch index."""
_LOWEST: Final = -(1 << 63)


def rows_in_order(files: Files, urls: Sequence[str], topic: str) -> Iterator[pa.RecordBatch]:
    """The rows of `topic`, the name of a partition, as batches of `FILE_COLUMNS`, sorted by `ORDER`.

    A file is open from the first row on that it may have until its last: files of different ranges one after
    the other, of different hours of a range together. Raises `CorruptData`, `StorageError`.
    """
    later = [(_lowest(files, url), url) for url in urls]
    heapq.heapify(later)
    runs: list[_SortedFile] = []
    while runs or later:
        # What has not been opened may begin below what is open: then it has to be open, too.
        while later and (not runs or later[0][0] <= min(run.first for run in runs)):
            run = _SortedFile(files, heapq.heappop(later)[1], topic)
            if run.advance():
                runs.append(run)
        if not runs:
            continue
        bound = min((run.last for run in runs), default=(0, 0, 0))
        is_whole = True
        if later and later[0][0] <= bound:
            bound, is_whole = later[0][0], False
        parts = [part for run in runs if (part := run.take(bound, including=is_whole)).num_rows]
        yield _sorted(parts)
        runs = [run for run in runs if run.has_rows or run.advance()]


class _SortedFile:
    """A file's rows from the first to the last, of which the next batch is at hand."""

    def __init__(self, files: Files, url: str, topic: str) -> None:
        self._batches = _batches(files, url, topic)
        self._batch: pa.RecordBatch = None
        self._keys: tuple[Ints, Ints, Ints]
        self._at = 0
        self.first: Key
        self.last: Key

    @property
    def has_rows(self) -> bool:
        return self._at < len(self._keys[0])

    def advance(self) -> bool:
        """To the next batch, when this one is used up; whether there is one."""
        found = next(self._batches, None)
        if found is None:
            return False
        self._batch, self._at = found, 0
        self._keys = _keys(found)
        self.first, self.last = self._key(0), self._key(found.num_rows - 1)
        return True

    def take(self, bound: Key, *, including: bool) -> pa.RecordBatch:
        """Rows below the bound, and those at it if it is included."""
        begin, end = self._at, _count_below(self._keys, bound, including)
        self._at = max(begin, end)
        if self.has_rows:
            self.first = self._key(self._at)
        return self._batch.slice(begin, self._at - begin)

    def _key(self, at: int) -> Key:
        ledger_ids, entry_ids, indexes = self._keys
        return int(ledger_ids[at]), int(entry_ids[at]), int(indexes[at])


def _count_below(keys: tuple[Ints, Ints, Ints], bound: Key, including: bool) -> int:
    first, last = 0, len(keys[0])
    for column, value in zip(keys, bound, strict=True):
        there = column[first:last]
        first, last = (
            first + int(np.searchsorted(there, value, "left")),
            first + int(np.searchsorted(there, value, "right")),
        )
    return last if including else first


def _keys(batch: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
    ledger_ids, entry_ids, indexes = (np.asarray(batch.column(name)).astype(np.int64) for name in ORDER)
    return ledger_ids, entry_ids, indexes


def _order(batch: pa.RecordBatch) -> Ints:
    return np.lexsort(_keys(batch)[::-1])


def _sorted(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    batch = pa.concat_batches(parts)
    return batch.take(pa.array(_order(batch)))


# -- one file ---------------------------------------------------------------------------------------------


def _lowest(files: Files, url: str) -> Key:
    """No row of the file is below it; by its footer."""
    with _opened(files, url) as file:
        ledgers, entries = (_extremes(file, name) for name in (LEDGER_ID, ENTRY_ID))
    if ledgers is None:
        return _LOWEST, _LOWEST, _LOWEST
    entry = entries[0] if entries is not None and ledgers[0] == ledgers[1] else _LOWEST
    return ledgers[0], entry, _LOWEST


def _extremes(file: pq.ParquetFile, name: str) -> tuple[int, int] | None:
    """Least and greatest of a column; None if the footer does not say it."""
    leaf = [file.schema.column(i).path for i in range(len(file.schema))].index(name)
    groups = [file.metadata.row_group(i).column(leaf).statistics for i in range(file.num_row_groups)]
    if not groups or any(one is None or not one.has_min_max for one in groups):
        return None
    return min(one.min for one in groups), max(one.max for one in groups)


def _opened(files: Files, url: str) -> pq.ParquetFile:
    source = files.open(url)
    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        source.close()
        raise CorruptData(f"{url}: not a whole Parquet file: {error}; take it from a copy") from None


def _batches(files: Files, url: str, topic: str) -> Iterator[pa.RecordBatch]:
    with _opened(files, url) as file:
        metadata = file.metadata
        row_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        row_bytes //= max(metadata.num_rows, 1)
        rows = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // max(row_bytes, 1)))
        try:
            if not _is_sorted(file):
                yield from _resorted(file, topic, rows)
                return
            for batch in file.iter_batches(rows, use_threads=False):
                shaped = _shaped(batch, topic)
                if shaped.num_rows:
                    yield shaped
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(f"{url}: damaged: {error}; take it from a copy") from None
        finally:
            file.close(force=True)


def _is_sorted(file: pq.ParquetFile) -> bool:
    """Files that this package writes are; of those that Spark wrote for it only nearly all."""
    before: Key | None = None
    for batch in file.iter_batches(1 << 16, columns=list(ORDER), use_threads=False):
        keys = _keys(batch)
        if not len(keys[0]):
            continue
        first, last = ((int(a[at]), int(b[at]), int(c[at])) for a, b, c in [keys] for at in (0, -1))
        if (before is not None and first < before) or (np.diff(np.lexsort(keys[::-1])) < 0).any():
            return False
        before = last
    return True


def _resorted(file: pq.ParquetFile, topic: str, rows: int) -> Iterator[pa.RecordBatch]:
    parts = [_shaped(batch, topic) for batch in file.iter_batches(rows, use_threads=False)]
    table = pa.Table.from_batches(parts, FILE_COLUMNS)
    table = table.sort_by([(name, "ascending") for name in ORDER])
    yield from (batch for batch in table.to_batches(max_chunksize=rows) if batch.num_rows)


def _shaped(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Rows of the topic with the columns of `FILE_COLUMNS`; those that a file does not have are null."""
    mine = pc.equal(batch.column(TOPIC), topic)
    if not pc.all(mine).as_py():
        batch = batch.filter(mine)
    columns = [
        batch.column(one.name).cast(one.type)
        if one.name in batch.schema.names
        else pa.nulls(batch.num_rows, one.type)
        for one in FILE_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_COLUMNS)
