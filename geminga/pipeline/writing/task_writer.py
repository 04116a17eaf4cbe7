"""One task's rows into a topic or its partitions, in batches that are cut by count alone.

A task that runs again with the same rows in the same order makes the same batches with the same sequence ids:
that is what makes deduplication by the broker exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from geminga.clock import RealClock
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.producing import Producer
from geminga.pipeline.client.topics import partitions_of
from geminga.pipeline.columns.columns import TOPIC
from geminga.pipeline.columns.encoding import (
    COMPRESSIONS,
    Rows,
    batch_metadata,
    batch_payload,
    concatenate,
    send_frame,
    single_metadata,
)
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.columns.routing import by_key, in_turn
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.topics.options import Options
from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.values.row_columns import PARTITION, check_columns, rows_of
from geminga.pipeline.values.value_encoding import ValueEncoder, value_encoder
from geminga.pipeline.writing.deduplication import check_first_receipt, deduplicates
from geminga.pipeline.writing.sequences import bounds, partitions_then, sequence_ids

_HEADERS_BYTES = 1024
_PRODUCERS_MAX = 1000
_CLOCK = RealClock()


@dataclass(frozen=True)
class Task:
    """Which part of which job these rows are."""

    producer_prefix: str
    """The same whenever the job runs again."""
    partition: int
    batch_id: int


@dataclass
class Written:
    rows: int = 0
    batches: int = 0


class _Lane:
    """One topic partition: rows that wait for a full batch, and the producer."""

    def __init__(self, producer: Producer, options: Options, *, is_known: bool) -> None:
        """`is_known`: to deduplicate; else an exact writer asks with the first receipt."""
        self.producer = producer
        self._options = options
        self._compression = COMPRESSIONS[options.compression]
        self._waiting: list[tuple[Rows, Ints]] = []
        self._waiting_rows = 0
        self._asks = options.exactly_once and not is_known
        self.last_sequence_id = -1
        self.written = Written()

    def add(self, rows: Rows, sequence_ids: Ints) -> None:
        """Sends every batch that is full."""
        size = self._options.batch_rows
        at = 0
        while at < len(rows):
            count = min(size - self._waiting_rows, len(rows) - at)
            self._waiting.append((rows.slice(at, count), sequence_ids[at : at + count]))
            self._waiting_rows += count
            at += count
            if self._waiting_rows == size:
                self.cut()

    def cut(self) -> None:
        """Send what waits as one batch, and what has a delivery time alone."""
        if not self._waiting:
            return
        rows = concatenate([part for part, _ in self._waiting])
        sequence_ids = np.concatenate([ids for _, ids in self._waiting])
        self._waiting, self._waiting_rows = [], 0
        if rows.deliver_at_ms is None or rows.deliver_at_ms.null_count == len(rows):
            self._send_batch(rows, sequence_ids)
            return
        delayed = ~np.asarray(rows.deliver_at_ms.is_null())
        begin = 0
        for row in [*np.flatnonzero(delayed).tolist(), len(rows)]:
            if row > begin:
                self._send_batch(rows.slice(begin, row - begin), sequence_ids[begin:row])
            if row < len(rows):
                self._send_single(rows.slice(row, 1), int(sequence_ids[row]))
            begin = row + 1

    def _send_batch(self, rows: Rows, sequence_ids: Ints) -> None:
        first, last = int(sequence_ids[0]), int(sequence_ids[-1])
        if self._options.exactly_once and first <= self.producer.last_sequence_id:
            if last > self.producer.last_sequence_id:
                raise self._other_rows()
            self._count(len(rows), last)
            return  # stored already, by an earlier attempt
        payload = batch_payload(rows)
        if len(payload) + _HEADERS_BYTES > self.producer.message_bytes_max:
            if len(rows) == 1:
                raise PipelineError(
                    f"{self.producer.topic}: a row of {len(payload)} bytes; the broker takes at most "
                    f"{self.producer.message_bytes_max} in one message"
                )
            half = len(rows) // 2
            self._send_batch(rows.slice(0, half), sequence_ids[:half])
            self._send_batch(rows.slice(half, len(rows) - half), sequence_ids[half:])
            return
        assert self.producer.name is not None
        metadata = batch_metadata(self.producer.name, first, last, _CLOCK.now_ms(), rows)
        self.producer.name_schema(metadata)
        self.producer.send(first, send_frame(1, metadata, payload, self._compression))
        self._sent(len(rows), last)

    def _send_single(self, row: Rows, sequence_id: int) -> None:
        if self._options.exactly_once and sequence_id <= self.producer.last_sequence_id:
            self._count(1, sequence_id)
            return
        assert self.producer.name is not None
        metadata = single_metadata(self.producer.name, sequence_id, _CLOCK.now_ms(), row)
        self.producer.name_schema(metadata)
        payload = row.value[0].as_py() or b""
        self.producer.send(sequence_id, send_frame(1, metadata, payload, self._compression))
        self._sent(1, sequence_id)

    def check_earlier_attempt(self, batch_id: int) -> None:
        """Raises `PipelineError` if an earlier attempt has stored more than there is now."""
        begin, end = bounds(batch_id)
        if max(begin, self.last_sequence_id + 1) <= self.producer.last_sequence_id < end:
            raise self._other_rows()

    def _other_rows(self) -> PipelineError:
        return PipelineError(
            f"{self.producer.topic}: an earlier attempt of this task wrote other rows. exactlyOnce needs the "
            "same rows in the same order in the same tasks when a micro batch runs again: keep the number of "
            "partitions, and sort within partitions where a shuffle changes the order"
        )

    def _sent(self, rows: int, last_sequence_id: int) -> None:
        self._count(rows, last_sequence_id)
        if self._asks:
            check_first_receipt(self.producer, last_sequence_id)
            self._asks = False

    def _count(self, rows: int, last_sequence_id: int) -> None:
        self.written.rows += rows
        self.written.batches += 1
        self.last_sequence_id = last_sequence_id


class TaskWriter:
    """Writes the rows of one task. `close` in any case."""

    def __init__(self, options: Options, task: Task, columns: pa.Schema | None = None) -> None:
        """`columns`: of the DataFrame; None: what comes first has them. Raises `BadColumns`, also if they do
        not say where the rows go.
        """
        self._options = options
        self._task = task
        self._encoder = None if columns is None else self._prepare(columns)
        self._lanes: dict[str, _Lane] = {}
        self._partitions: dict[str, list[str]] = {}
        self._rows: dict[str, int] = {}

    def _prepare(self, columns: pa.Schema) -> ValueEncoder:
        check_columns(columns)
        if not self._chooses_topics(columns):
            self._only_topic()
        return value_encoder(columns, self._options.value_schema)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Returns once every row is durable. Raises `PipelineError`."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if self._encoder is None:
                self._encoder = self._prepare(batch.schema)
            if self._chooses_topics(batch.schema):
                self._by_topic(batch)
            else:
                self._add(self._only_topic(), batch)
        for lane in self._lanes.values():
            lane.cut()
        for lane in self._lanes.values():
            lane.producer.flush()
        if self._options.exactly_once:
            for lane in self._lanes.values():
                lane.check_earlier_attempt(self._task.batch_id)
        return Written(
            sum(lane.written.rows for lane in self._lanes.values()),
            sum(lane.written.batches for lane in self._lanes.values()),
        )

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.producer.close()

    def _chooses_topics(self, columns: pa.Schema) -> bool:
        """Whether each row says where it goes."""
        return self._options.topics is None and TOPIC in columns.names

    def _only_topic(self) -> str:
        topics = self._options.topics
        if topics is None:
            raise BadColumns("no topic to write to: give the option topic, or a column __topic")
        if topics.pattern is not None or len(topics.names) != 1:
            raise BadColumns(
                "a DataFrame is written to one topic: give the option topic, or a column __topic"
            )
        return topics.names[0]

    def _by_topic(self, batch: pa.RecordBatch) -> None:
        topics = batch.column(TOPIC).dictionary_encode()
        indices = np.asarray(topics.indices.fill_null(-1))
        if (indices < 0).any():
            raise BadColumns("a row without a topic: __topic is null and the option topic is not given")
        for index, topic in enumerate(topics.dictionary.to_pylist()):
            self._add(topic, batch.take(pa.array(np.flatnonzero(indices == index))))

    def _add(self, topic: str, batch: pa.RecordBatch) -> None:
        assert self._encoder is not None
        rows = rows_of(batch, self._encoder(batch))
        first = self._rows.get(topic, 0)
        self._rows[topic] = first + len(rows)
        parts = self._parts(topic)
        numbers = bounds(self._task.batch_id)[0] + np.arange(first, first + len(rows))
        if self._options.exactly_once:
            numbers = sequence_ids(self._task.batch_id, first, len(rows), len(parts))
        if len(parts) == 1:
            self._lane(parts[0]).add(rows, numbers)
            return
        targets = self._targets(batch, rows, first, len(parts))
        for index in np.unique(targets).tolist():
            mine = np.flatnonzero(targets == index)
            self._lane(parts[index]).add(rows.take(mine), numbers[mine])

    def _targets(self, batch: pa.RecordBatch, rows: Rows, first: int, partitions: int) -> Ints:
        if self._options.partitioning == "partition":
            if PARTITION not in batch.schema.names:
                raise BadColumns(
                    f"partitioning=partition needs a column {PARTITION} with the number of the partition"
                )
            found = np.asarray(batch.column(PARTITION).fill_null(-1), np.int64)
            if ((found < 0) | (found >= partitions)).any():
                raise BadColumns(f"{PARTITION} has numbers that are not in [0, {partitions})")
            return found
        turn = in_turn(first, len(rows), self._options.batch_rows, partitions, self._task.partition)
        if self._options.partitioning == "single":
            turn = np.full(len(rows), self._task.partition % partitions)
        if self._options.partitioning == "roundrobin" or rows.key is None:
            return turn
        keyed = by_key(rows.key, partitions, self._options.hashing)
        return np.where(keyed < 0, turn, keyed)

    def _parts(self, topic: str) -> list[str]:
        found = self._partitions.get(topic)
        if found is None:
            with Connection.open(self._options.access) as connection:
                found = partitions_of(connection, topic, create=True)
            if self._options.exactly_once:  # those that there were when this micro batch was written first
                known = [self._lane(part).producer.last_sequence_id for part in found]
                found = found[: partitions_then(self._task.batch_id, known, len(found))]
            self._partitions[topic] = found
        return found

    def _lane(self, part: str) -> _Lane:
        lane = self._lanes.get(part)
        if lane is None:
            if len(self._lanes) >= _PRODUCERS_MAX:
                raise PipelineError(
                    f"more than {_PRODUCERS_MAX} topics in one task; repartition by __topic first"
                )
            name = (
                f"{self._task.producer_prefix}-{self._task.partition}" if self._options.exactly_once else None
            )
            producer = Producer(
                self._options.access,
                part,
                name,
                pending_max=self._options.pending_max,
                send_timeout_s=self._options.send_timeout_s,
                schema=None if self._encoder is None else self._encoder.schema,
            )
            try:
                is_known = self._options.exactly_once and deduplicates(producer, self._options)
            except BaseException:
                producer.close()
                raise
            lane = self._lanes[part] = _Lane(producer, self._options, is_known=is_known)
        return lane
