"""What an export reads: each topic from where the last one ended, its schemas; and the columns it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fastcrc.crc32 import iscsi as crc_32c

from geminga.errors import CorruptData
from geminga.limits import MIB
from geminga.names import TopicName
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.client.topics import Last, full_name
from geminga.pipeline.columns.columns import (
    HEADERS,
    METADATA_COLUMNS,
    MORE_COLUMNS,
    PARTITION,
    REDELIVERY_COUNT,
    TOPIC,
    UNDECRYPTED,
    VALUE,
    ColumnMaker,
)
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.errors import ALLOW_LOSS, DataLost, PipelineError
from geminga.pipeline.export.manifest import ExportedFile, ExportedTopic
from geminga.pipeline.files.files import Files, NotThere
from geminga.pipeline.files.locations import join
from geminga.pipeline.topics.options import Options, TopicChoice
from geminga.pipeline.topics.planning import cut_ranges, partitions, topics_of
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import EncryptedEntry, read_range
from geminga.pipeline.values.schemas import TopicSchema, fetch_versions

_NOT_IN_FILES: Final = (REDELIVERY_COUNT, PARTITION, UNDECRYPTED, HEADERS)
_READ: Final = pa.schema(
    [
        (VALUE, pa.binary()),
        *METADATA_COLUMNS.items(),
        *((name, kind) for name, kind in MORE_COLUMNS.items() if name not in _NOT_IN_FILES),
    ]
)
FILE_COLUMNS: Final = _READ.append(pa.field(PARTITION, pa.int32()))
"""What is in the files."""
_CHECK_BYTES = 8 * MIB


@dataclass(frozen=True)
class Plan:
    ranges: tuple[Range, ...]
    topics: Mapping[str, ExportedTopic]
    """As they will be known once the ranges are exported."""


def plan_export(options: Options, known: Mapping[str, ExportedTopic]) -> Plan:
    """Everything that is stored now and was not exported. Raises `PipelineError`."""
    found: list[tuple[Range, Last]] = []
    topics = dict(known)
    for topic in topics_of(options):
        before = known.get(topic)
        own = replace(options, topics=TopicChoice(names=(topic,)))
        parts = partitions(own)
        offsets = dict(before.offsets) if before is not None else {}
        for part in parts:
            start = offsets.get(part, EARLIEST)
            last = last_of(options.access, part)
            wanted = _range(options, part, start, last)
            offsets[part] = wanted.end
            if wanted.start < wanted.end:
                found.append((wanted, last))
        count = 0 if parts == [topic] else len(parts)
        topics[topic] = ExportedTopic(count, offsets, _schemas(options, topic))
    with TopicQuestions(options.access) as questions:
        return Plan(tuple(cut_ranges(options, found, questions)), topics)


def _range(options: Options, topic: str, start: MessageId, last: Last) -> Range:
    if last.message_id is None:
        return Range(topic, start, start)
    if start > last.end:
        if options.fail_on_data_loss:
            raise DataLost(
                f"{topic} ends at {last.message_id}, but was exported up to {start}: it was deleted and "
                "created again. ",
                ALLOW_LOSS,
                " to export its present messages as well, or begin a new export",
            )
        start = EARLIEST
    strict = options.fail_on_data_loss
    return Range(
        topic,
        start,
        last.end,
        check_previous=strict and start > EARLIEST,
        ends_with_message=strict,
        loss_allowed=not strict,
        unknown_end=options.unknown_ledger_end,
    )


def _schemas(options: Options, topic: str) -> tuple[tuple[bytes, TopicSchema], ...]:
    with Connection.open(options.access) as connection:
        return fetch_versions(connection, topic)


def exported_batches(options: Options, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The messages of a range with the columns of `FILE_COLUMNS`, in the order of the topic. Raises
    what `read_range` does.
    """
    try:
        yield from _exported_batches(options, wanted)
    except EncryptedEntry as error:
        raise PipelineError(
            f"{error}: encrypted messages are not exported, as files and replays would hold them in plain. "
            "Leave the topic out, or read it into a DataFrame with the key and write that where it is safe"
        ) from None


def _exported_batches(options: Options, wanted: Range) -> Iterator[pa.RecordBatch]:
    index = max(full_name(wanted.topic).partition_index, -1)
    maker = ColumnMaker(wanted.topic, _READ)
    timeout_s = options.poll_timeout_s
    for batch in read_range(options.access, wanted, maker, poll_timeout_s=timeout_s, may_decrypt=False):
        columns = [*batch.columns, pa.array(np.full(batch.num_rows, index, np.int32))]
        yield pa.RecordBatch.from_arrays(columns, schema=FILE_COLUMNS)


def whole_topic(part: str) -> str:
    """The partitioned topic that a partition is of; itself if it is none."""
    return str(TopicName.parse(part).partitioned_name)


def inspect(files: Files, directory: str, path: str) -> ExportedFile:
    """A file that was just written: read again, counted. Raises `StorageError`."""
    whole = join(directory, path)
    size_bytes, checksum = _checksum(files, whole)
    topics: dict[str, int] = {}
    rows = 0
    with files.open(whole) as source, pq.ParquetFile(source) as parquet:
        for batch in parquet.iter_batches(columns=[TOPIC]):
            rows += batch.num_rows
            for one in pc.value_counts(batch.column(0)).to_pylist():
                topics[one["values"]] = topics.get(one["values"], 0) + one["counts"]
    return ExportedFile(path, size_bytes, checksum, rows, topics)


def verify(files: Files, directory: str, file: ExportedFile) -> None:
    """That a file is what the manifest says. Raises `CorruptData`, `StorageError`."""
    whole = join(directory, file.path)
    try:
        size_bytes, checksum = _checksum(files, whole)
    except NotThere:
        raise CorruptData(f"{whole} is missing though the manifest names it; take it from a copy") from None
    if (size_bytes, checksum) != (file.size_bytes, file.crc32c):
        raise CorruptData(
            f"{whole} is damaged: {size_bytes} bytes with CRC-32C {checksum:08x}, the manifest says "
            f"{file.size_bytes} with {file.crc32c:08x}; take it from a copy, or export again"
        )


def _checksum(files: Files, url: str) -> tuple[int, int]:
    with files.open(url) as file:
        size_bytes, checksum = file.size(), 0
        for at in range(0, size_bytes, _CHECK_BYTES):
            checksum = crc_32c(file.read_at(min(_CHECK_BYTES, size_bytes - at), at), checksum)
        return size_bytes, checksum
