"""The files of one range of a topic: its rows in the order of the topic, a file for each hour they are of."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from geminga.limits import MIB
from geminga.pipeline.columns.columns import PUBLISH_TIME, TOPIC
from geminga.pipeline.export.manifest import ExportedFile
from geminga.pipeline.export.plan import FILE_COLUMNS, inspect
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import join

PUBLISH_DATE, PUBLISH_HOUR = "publish_date", "publish_hour"
"""What the directories are named after; UTC."""
FILE_ROWS_MAX: Final = 2_000_000
GROUP_BYTES: Final = 16 * MIB
"""Of a row group, before it is encoded."""
WAITING_BYTES_MAX: Final = 64 * MIB
"""Of rows that wait for their row group, all files together."""
OPEN_MAX: Final = 32
"""Files written at once; times of producers may be of any hour."""
_HOUR_US: Final = 3_600_000_000
_DAY_HOURS: Final = 24


def write_range(
    files: Files, directory: str, number: int, batches: Iterable[pa.RecordBatch]
) -> list[ExportedFile]:
    """Write rows of `FILE_COLUMNS` below `directory`; what the files are, read again from where they lie.

    No two calls write to the same name, so a range may be written again, or by two at once: what counts is
    what the manifest names. Raises `StorageError`.
    """
    with _HourFiles(files, directory, number) as hours:
        for batch in batches:
            hours.add(batch)
        paths = hours.finish()
    return [inspect(files, directory, path) for path in paths]


def hour_directory(hour: int) -> str:
    """Of rows published in this hour since 1970."""
    date = np.datetime64(hour // _DAY_HOURS, "D")
    return f"{PUBLISH_DATE}={date}/{PUBLISH_HOUR}={hour % _DAY_HOURS}"


class _HourFiles:
    """The open files of a range, as a context: after an exception none is left."""

    def __init__(self, files: Files, directory: str, number: int) -> None:
        self._files = files
        self._directory = directory
        self._name = f"part-{number:05d}-{uuid.uuid4().hex}"
        self._open: dict[int, _HourFile] = {}
        """By hour, the one that was written to last at the end."""
        self._paths: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for hour, rows in _by_hour(batch):
            file = self._open.pop(hour, None) or self._create(hour)
            self._open[hour] = file
            file.add(rows)
            if file.rows >= FILE_ROWS_MAX:
                self._open.pop(hour).close()
        while sum(file.waiting_bytes for file in self._open.values()) > WAITING_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.waiting_bytes).flush()

    def _create(self, hour: int) -> _HourFile:
        if len(self._open) >= OPEN_MAX:
            self._open.pop(next(iter(self._open))).close()
        path = f"{hour_directory(hour)}/{self._name}-{len(self._paths):03d}.zstd.parquet"
        self._paths.append(path)
        return _HourFile(self._files, join(self._directory, path))

    def finish(self) -> list[str]:
        """Below the directory, all whole."""
        while self._open:
            self._open.pop(next(iter(self._open))).close()
        return self._paths

    def __enter__(self) -> _HourFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.abandon(kind, error, trace)


class _HourFile:
    def __init__(self, files: Files, url: str) -> None:
        self._created = contextlib.ExitStack()
        sink = self._created.enter_context(files.create(url))
        # Without Arrow's own schema, so that whatever reads the file sees what Parquet says.
        writer = pq.ParquetWriter(
            sink,
            FILE_COLUMNS,
            compression="zstd",
            compression_level=3,
            use_dictionary=[TOPIC],  # of values that are all different one costs twice the space
            store_schema=False,
            write_page_checksum=True,
        )
        self._writer = self._created.enter_context(writer)
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self.waiting_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, FILE_COLUMNS))
        self._waiting, self.waiting_bytes = [], 0

    def close(self) -> None:
        try:
            self.flush()
        except BaseException as error:
            self.abandon(type(error), error, error.__traceback__)
            raise
        self._created.close()

    def abandon(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Those that fail again while they are left say nothing new.
        with contextlib.suppress(Exception):
            self._created.__exit__(kind, error, trace)


def _by_hour(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    hours = np.asarray(batch.column(PUBLISH_TIME).cast(pa.int64())) // _HOUR_US
    if not len(hours):
        return
    if hours.min() == hours.max():
        yield int(hours[0]), batch
        return
    for hour in np.unique(hours).tolist():
        yield hour, batch.take(pa.array(np.flatnonzero(hours == hour)))
