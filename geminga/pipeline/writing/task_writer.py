"""One task's rows into a topic or its partitions.

A task that runs again with the same rows in the same order gives them the same sequence ids, and its lanes
leave out what is stored: that, and the broker's deduplication, makes writing exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pyarrow as pa

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.producer_connections import ProducerConnections
from geminga.pipeline.client.producing import PendingBytes, Producer, while_away
from geminga.pipeline.client.topics import full_name, missing_for_writer, partitions_of
from geminga.pipeline.columns.columns import PARTITION, TOPIC
from geminga.pipeline.columns.encoding import Rows
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.columns.routing import by_key, in_turn
from geminga.pipeline.errors import PipelineError, TopicMissing
from geminga.pipeline.topics.options import Options
from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.values.row_columns import check_columns, rows_of
from geminga.pipeline.values.value_encoding import Encoder, pair_encoder, value_encoder
from geminga.pipeline.writing.deduplication import deduplicates
from geminga.pipeline.writing.earlier_attempts import earlier_attempts, stored_digest
from geminga.pipeline.writing.lane import Lane, Written
from geminga.pipeline.writing.repetitions import Task
from geminga.pipeline.writing.row_order import by_content
from geminga.pipeline.writing.sequences import bounds, partitions_then, sequence_ids

__all__ = ["Task", "TaskWriter", "Written"]

_PRODUCERS_MAX = 10_000
"""Of a task."""


class TaskWriter:
    """Writes the rows of one task. `close` in any case."""

    def __init__(self, options: Options, task: Task, columns: pa.Schema | None = None) -> None:
        """`columns`: of the DataFrame; None: what comes first has them. Raises `BadColumns`, also if they do
        not say where the rows go.
        """
        self._options = options
        self._task = task
        self._encoder = None if columns is None else self._prepare(columns)
        self._lanes: dict[str, Lane] = {}
        self._partitions: dict[str, list[str]] = {}
        self._rows: dict[str, int] = {}
        # a quarter waits, a quarter is for the copy of a lane's rows that becomes a batch
        self._waiting_bytes_max = options.memory_limit_bytes // 4
        self._connections = ProducerConnections(options.access)
        self._pending_bytes = PendingBytes(options.memory_limit_bytes // 2)

    def _prepare(self, columns: pa.Schema) -> Encoder:
        check_columns(columns)
        if not self._chooses_topics(columns):
            self._only_topic()
        options = self._options
        if options.key_value_encoding is not None:
            return pair_encoder(columns, options.key_schema, options.value_schema, options.key_value_encoding)
        return value_encoder(columns, options.value_schema)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Returns once every row is durable. Raises `PipelineError`."""
        if self._options.task_order == "content":
            batches = by_content(batches, self._encoder_of)
        for batch in batches:
            if batch.num_rows == 0:
                continue
            self._encoder_of(batch.schema)
            if self._chooses_topics(batch.schema):
                self._by_topic(batch)
            else:
                self._add(self._only_topic(), batch)
        for lane in self._lanes.values():
            lane.cut()
        for lane in self._lanes.values():
            lane.finish()
        return Written(
            sum(lane.written.rows for lane in self._lanes.values()),
            sum(lane.written.batches for lane in self._lanes.values()),
        )

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.producer.close()

    def _encoder_of(self, columns: pa.Schema) -> Encoder:
        if self._encoder is None:
            self._encoder = self._prepare(columns)
        return self._encoder

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
        names = [str(full_name(topic)) for topic in topics.dictionary.to_pylist()]
        known = list(dict.fromkeys(names))  # one topic may be spelled in several ways
        numbers = np.array([known.index(name) for name in names])[indices]
        for number, name in enumerate(known):
            self._add(name, batch.take(pa.array(np.flatnonzero(numbers == number))))

    def _add(self, topic: str, batch: pa.RecordBatch) -> None:
        assert self._encoder is not None
        rows = rows_of(batch, *self._encoder(batch))
        first = self._rows.get(topic, 0)
        self._rows[topic] = first + len(rows)
        parts = self._parts(topic)
        numbers = bounds(self._task.batch_id)[0] + np.arange(first, first + len(rows))
        if self._options.exactly_once:
            numbers = sequence_ids(self._task.batch_id, first, len(rows), len(parts))
        targets = None if len(parts) == 1 else self._targets(batch, rows, first, len(parts))
        self._spread(parts, rows, numbers, targets)
        if batch.nbytes > self._waiting_bytes_max // 4:
            for lane in self._lanes.values():
                lane.own()

    def _spread(self, parts: list[str], rows: Rows, numbers: Ints, targets: Ints | None) -> None:
        """To their lanes; `targets` None: there is one. Rows that do not fit beside those that wait go by
        halves, and before one row that does not fit the lane with the most waiting is sent. So which rows
        travel together depends on the rows alone, and not on the Arrow batches that they come in.
        """
        size_bytes = rows.content_bytes
        waiting_bytes = sum(lane.waiting_bytes for lane in self._lanes.values())
        if waiting_bytes + size_bytes > self._waiting_bytes_max:
            if len(rows) > 1:
                half = len(rows) // 2
                for at, end in ((0, half), (half, len(rows))):
                    own = None if targets is None else targets[at:end]
                    self._spread(parts, rows.slice(at, end - at), numbers[at:end], own)
                return
            self._make_room(waiting_bytes + size_bytes - self._waiting_bytes_max)
        if targets is None:
            self._lane(parts[0]).add(rows, numbers)
            return
        for index in np.unique(targets).tolist():
            mine = np.flatnonzero(targets == index)
            self._lane(parts[index]).add(rows.take(mine), numbers[mine])

    def _make_room(self, missing_bytes: int) -> None:
        while missing_bytes > 0 and self._lanes:
            most = max(self._lanes.values(), key=lambda lane: lane.waiting_bytes)
            if most.waiting_bytes == 0:
                return
            missing_bytes -= most.waiting_bytes
            most.send_waiting()

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
            ask = partial(self._ask_partitions, topic)
            if self._task.in_order:  # a stream goes on; in a job that begins the address may be wrong
                found = while_away(self._options.send_timeout_s, ask, lambda: f"{topic}: nothing was written")
            else:
                found = ask()
            if self._options.exactly_once:  # those that there were when this micro batch was written first
                known = self._open_exactly(found)
                found = found[: partitions_then(self._task.batch_id, known, len(found))]
            self._partitions[topic] = found
        return found

    def _ask_partitions(self, topic: str) -> list[str]:
        with Connection.open(self._options.access) as connection:
            try:
                return partitions_of(connection, topic, create=True)
            except TopicMissing:
                raise missing_for_writer(topic) from None

    def _open_exactly(self, parts: list[str]) -> list[int]:
        """The last sequence id of the task in each partition; -1: there is none in this micro batch."""
        self._check_room(len(parts))
        if twice := next((part for part in parts if part in self._lanes), None):
            raise BadColumns(f"__topic names both {twice} and its partitioned topic: give one of them alone")
        producers: list[Producer] = []
        try:
            for part in parts:
                producers.append(self._producer(part, self._task.producer))  # noqa: PERF401 (closed below)
            are_known = [deduplicates(producer, self._options) for producer in producers]
            earlier = earlier_attempts(self._options, self._task, producers)
        except BaseException:
            for producer in producers:
                producer.close()
            raise
        for part, producer, note, is_known in zip(parts, producers, earlier, are_known, strict=True):
            self._lanes[part] = Lane(producer, self._options, self._task, earlier=note, is_known=is_known)
        return [-1 if note is None else note.last_sequence_id for note in earlier]

    def _lane(self, part: str) -> Lane:
        lane = self._lanes.get(part)
        if lane is None:
            self._check_room(1)
            producer = self._producer(part, None)
            lane = Lane(producer, self._options, self._task, earlier=None, is_known=False)
            self._lanes[part] = lane
        return lane

    def _check_room(self, lanes: int) -> None:
        if len(self._lanes) + lanes > _PRODUCERS_MAX:
            raise PipelineError(
                f"more than {_PRODUCERS_MAX} topics and partitions in one task; repartition by __topic or "
                f"{PARTITION} first"
            )

    def _producer(self, part: str, name: str | None) -> Producer:
        return Producer(
            self._options.access,
            part,
            name,
            connections=self._connections,
            pending_max=self._options.pending_max,
            send_timeout_s=self._options.send_timeout_s,
            schema=None if self._encoder is None else self._encoder.schema,
            pending_bytes=self._pending_bytes,
            stored_digest=(
                partial(stored_digest, self._options, self._task, part)
                if self._options.exactly_once
                else None
            ),
        )
