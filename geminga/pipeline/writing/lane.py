"""One producer of a task: rows that wait for a full batch, and what an earlier attempt has stored of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geminga.clock import RealClock
from geminga.pipeline.client.producing import Producer
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
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.topics.options import Options
from geminga.pipeline.writing.deduplication import check_first_receipt
from geminga.pipeline.writing.earlier_attempts import last_note
from geminga.pipeline.writing.repetitions import NO_ROWS, Note, Task, digest_of, other_rows
from geminga.wire import pulsar_pb2 as pb

_HEADERS_BYTES = 1024
_CLOCK = RealClock()


@dataclass
class Written:
    rows: int = 0
    batches: int = 0


class Lane:
    """To one topic partition."""

    def __init__(
        self, producer: Producer, options: Options, task: Task, *, earlier: Note | None, is_known: bool
    ) -> None:
        """`earlier`: what is stored of this micro-batch. `is_known`: the broker deduplicates; else an exact
        writer asks with the first receipt.
        """
        self.producer = producer
        self._options = options
        self._task = task
        self._compression = COMPRESSIONS[options.compression]
        self._waiting: list[tuple[Rows, Ints]] = []
        self._waiting_rows = 0
        self.waiting_bytes = 0
        """Of the rows that wait for a full batch."""
        self._asks = options.exactly_once and not is_known
        self._earlier = earlier
        self._earlier_run = "" if earlier is None else earlier.run
        self._digest = NO_ROWS
        self._last_sequence_id = -1
        self._end: int | None = None
        """The sequence id of the last row, once it is known."""
        self._is_complete = False
        """An earlier attempt has stored all its rows."""
        self.written = Written()

    def add(self, rows: Rows, sequence_ids: Ints) -> None:
        """Sends full batches, but keeps the last one: only `cut` knows that no row follows. Raises
        `PipelineError` if other rows were stored under the same ids.
        """
        if self._earlier is not None:
            stored = int(np.searchsorted(sequence_ids, self._earlier.last_sequence_id, side="right"))
            self._leave_out(rows.slice(0, stored), sequence_ids[:stored], self._earlier)
            rows, sequence_ids = rows.slice(stored, len(rows) - stored), sequence_ids[stored:]
            if len(rows) and (self._earlier is not None or self._is_complete):
                raise self._other_rows()
        elif self._is_complete and len(rows):
            raise self._other_rows()
        size = self._options.batch_rows
        at = 0
        while at < len(rows):
            if self._waiting_rows == size:
                self.send_waiting()
            count = min(size - self._waiting_rows, len(rows) - at)
            self._waiting.append((rows.slice(at, count), sequence_ids[at : at + count]))
            self._waiting_rows += count
            at += count
        if self._waiting:
            last = self._waiting[-1][0]
            self.waiting_bytes += rows.content_bytes if len(self._waiting) > 1 else last.content_bytes

    def own(self) -> None:
        """Copy the rows that wait: else they keep the whole Arrow batch that they are a slice of."""
        if self._waiting:
            rows, sequence_ids = self._joined()
            self._waiting = [(rows.take(np.arange(len(rows))), sequence_ids)]

    def send_waiting(self) -> None:
        """Send what waits, as one batch, though more rows may follow."""
        if self._waiting:
            self._send_waiting(is_all=False)

    def cut(self) -> None:
        """Send what waits: there are no more rows."""
        if self._waiting:
            self._send_waiting(is_all=True)

    def _send_waiting(self, *, is_all: bool) -> None:
        """As one batch; what has a delivery time alone."""
        rows, sequence_ids = self._joined()
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0
        if is_all:
            self._end = int(sequence_ids[-1])
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

    def _joined(self) -> tuple[Rows, Ints]:
        rows = concatenate([part for part, _ in self._waiting])
        return rows, np.concatenate([ids for _, ids in self._waiting])

    def finish(self) -> None:
        """Returns once everything is durable, and stored by this attempt or one with the same rows. Raises
        `PipelineError`.
        """
        self.producer.flush()
        if self._earlier is not None:
            raise self._other_rows()
        if self._options.exactly_once and self._options.check_repetition and self.producer.deduplicated:
            self._check_stored()

    def _leave_out(self, rows: Rows, sequence_ids: Ints, earlier: Note) -> None:
        """Rows that an earlier attempt has stored: the same, as the last of them tells."""
        if len(rows) == 0:
            return
        last = int(sequence_ids[-1])
        self._digest = digest_of(batch_payload(rows), self._digest)
        if last == earlier.last_sequence_id:
            if self._options.check_repetition and self._digest != earlier.digest:
                raise self._other_rows()
            self._earlier = None
            self._is_complete = earlier.is_all
        self._count(len(rows), last)

    def _other_rows(self, run: str | None = None) -> PipelineError:
        return other_rows(self.producer.topic, self._task, self._earlier_run if run is None else run)

    def _check_stored(self) -> None:
        """The broker took an entry of ours for a repetition. That is right if it was sent twice, after a lost
        connection, and wrong if another writer had the name meanwhile: then its rows are stored.
        """
        found = last_note(self._options, self._task, self.producer.topic, is_known=True)
        if found is None or found[:2] != (self._last_sequence_id, self._digest):
            raise self._other_rows("" if found is None else found.run)

    def _send_batch(self, rows: Rows, sequence_ids: Ints) -> None:
        first, last = int(sequence_ids[0]), int(sequence_ids[-1])
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
        if self._options.exactly_once:
            self._note(metadata, payload, last)
        self.producer.name_schema(metadata)
        frame = send_frame(self.producer.producer_id, metadata, payload, self._compression)
        self.producer.send(first, frame, last, self._digest)
        self._sent(len(rows), last)

    def _send_single(self, row: Rows, sequence_id: int) -> None:
        assert self.producer.name is not None
        metadata = single_metadata(self.producer.name, sequence_id, _CLOCK.now_ms(), row)
        if self._options.exactly_once:
            self._note(metadata, batch_payload(row), sequence_id)
        self.producer.name_schema(metadata)
        payload = row.value[0].as_py() or b""
        frame = send_frame(self.producer.producer_id, metadata, payload, self._compression)
        self.producer.send(sequence_id, frame, digest=self._digest)
        self._sent(1, sequence_id)

    def _note(self, metadata: pb.MessageMetadata, encoded_rows: bytes, last_sequence_id: int) -> None:
        self._digest = digest_of(encoded_rows, self._digest)
        is_all = last_sequence_id == self._end
        metadata.uuid = str(Note(last_sequence_id, self._digest, is_all, self._task.run))

    def _sent(self, rows: int, last_sequence_id: int) -> None:
        self._count(rows, last_sequence_id)
        if self._asks:
            check_first_receipt(self.producer, last_sequence_id)
            self._asks = False

    def _count(self, rows: int, last_sequence_id: int) -> None:
        self.written.rows += rows
        self.written.batches += 1
        self._last_sequence_id = last_sequence_id
