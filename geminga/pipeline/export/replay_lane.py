"""Exported messages back into one topic partition: entry for entry, in order, at a pace.

A batch is a batch again with the same messages, because consumers of a Key_Shared subscription get whole
entries. Sequence ids are the numbers of the rows in the order of the source, so that a broker that
deduplicates stores each once however often a replay is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from geminga.clock import RealClock
from geminga.pipeline.client.producing import Producer
from geminga.pipeline.columns.columns import (
    BATCH_INDEX,
    DELIVER_AT_TIME,
    ENTRY_ID,
    LEDGER_ID,
    SCHEMA_VERSION,
)
from geminga.pipeline.columns.encoding import (
    COMPRESSIONS,
    batch_metadata,
    batch_payload,
    send_frame,
    single_metadata,
)
from geminga.pipeline.columns.entries import NO_BATCH, Flags
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.export.replay_entries import Entry, chunk_frames, rows_to_send

_HEADERS_BYTES: Final = 1024
_CLOCK: Final = RealClock()


class Delivery(StrEnum):
    """What is promised of messages that are sent again after a failure."""

    AUTO = "auto"
    """Exactly once where the broker deduplicates, else at least once."""
    EXACTLY_ONCE = "exactly-once"
    """Refuse a broker that does not deduplicate."""
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True)
class LaneSettings:
    delivery: Delivery = Delivery.AUTO
    compression: str = "none"
    batch_rows: int = 0
    """At most so many messages in a batch; 0: the batches of the source."""
    shift_ms: int = 0
    """Added to each delivery time."""
    versions: dict[bytes, bytes] = field(default_factory=dict)
    """Schema versions of the source and what they are called at the target."""


@dataclass
class Sent:
    rows: int = 0
    entries: int = 0
    skipped: int = 0
    """Rows that the broker already had from an earlier attempt."""


class Pace:
    """At most so many rows a second, on average from the first on."""

    def __init__(self, rows_per_s: float | None) -> None:
        self._rows_per_s = rows_per_s
        self._free_at_s: float | None = None

    def owed_s(self, rows: int) -> float:
        """How long to wait before these rows go."""
        if self._rows_per_s is None:
            return 0.0
        now = _CLOCK.monotonic_s()
        due = now if self._free_at_s is None else max(self._free_at_s, now - 1.0)
        self._free_at_s = due + rows / self._rows_per_s
        return max(due - now, 0.0)


class Lane:
    """Rows of one source partition to one target partition. Add them in order, then `finish`."""

    def __init__(self, producer: Producer, settings: LaneSettings, pace: Pace) -> None:
        self.sent = Sent()
        self.deduplicates: bool | None = None
        """None: not known yet."""
        self._producer = producer
        self._settings = settings
        self._pace = pace
        self._compression = COMPRESSIONS[settings.compression]
        self._held: tuple[pa.RecordBatch, Ints] | None = None
        self._last_sequence_id = -1
        if producer.last_sequence_id >= 0:
            self.deduplicates = True

    def add(self, batch: pa.RecordBatch, sequence_ids: Ints) -> None:
        """The rows since the last entry begins are held, as more of it may follow. Raises `PipelineError`."""
        if self._held is not None:
            held, held_ids = self._held
            table = pa.Table.from_batches([held, batch]).combine_chunks()
            batch, sequence_ids = table.to_batches()[0], np.concatenate([held_ids, sequence_ids])
        cuts = self._cuts(batch, sequence_ids)
        self._send(batch.slice(0, cuts[-1]), sequence_ids[: cuts[-1]], cuts[:-1])
        self._held = batch.slice(cuts[-1]), sequence_ids[cuts[-1] :]

    def finish(self) -> Sent:
        """Returns once every row is durable. Raises `PipelineError`."""
        if self._held is not None:
            self._send(*self._held, [0])
            self._held = None
        self._producer.flush()
        if self._settings.delivery is Delivery.AT_LEAST_ONCE:
            self.deduplicates = False
        elif self.deduplicates is None and self._last_sequence_id >= 0:
            self._ask_deduplication()
        return self.sent

    # -- entries --------------------------------------------------------------------------------------------

    def _cuts(self, batch: pa.RecordBatch, sequence_ids: Ints) -> list[int]:
        """The rows that entries begin with."""
        changes = _changes(_codes(batch.column(SCHEMA_VERSION)))
        delayed = _ms(batch.column(DELIVER_AT_TIME))
        if self._settings.batch_rows == 0:
            changes |= _changes(_ints(batch, LEDGER_ID)) | _changes(_ints(batch, ENTRY_ID))
        else:
            changes |= _changes(sequence_ids // self._settings.batch_rows)
            changes |= (delayed[1:] >= 0) | (delayed[:-1] >= 0)
        return [0, *(np.flatnonzero(changes) + 1).tolist()]

    def _send(self, batch: pa.RecordBatch, sequence_ids: Ints, cuts: list[int]) -> None:
        count = batch.num_rows
        if count == 0:
            return
        rows = rows_to_send(batch)
        delayed = _ms(batch.column(DELIVER_AT_TIME))
        single = _ints(batch, BATCH_INDEX) == NO_BATCH
        versions = batch.column(SCHEMA_VERSION)
        for first, last in zip(cuts, [*cuts[1:], count], strict=True):
            known = (
                -1 if self._settings.delivery is Delivery.AT_LEAST_ONCE else self._producer.last_sequence_id
            )
            begin = first + int(np.searchsorted(sequence_ids[first:last], known, side="right"))
            self.sent.skipped += begin - first
            if begin == last:
                continue
            own = rows.slice(begin, last - begin)
            deliver_at_ms = int(delayed[begin])
            entry = Entry(
                own,
                sequence_ids[begin:last],
                deliver_at_ms + self._settings.shift_ms if deliver_at_ms >= 0 else None,
                self._settings.versions.get(versions[begin].as_py() or b""),
            )
            alone = last - begin == 1 and (
                single[begin] or (self._settings.batch_rows and deliver_at_ms >= 0)
            )
            self._wait_turn(len(own))
            if alone:
                self._send_single(entry)
            else:
                self._send_batch(entry)

    def _wait_turn(self, rows: int) -> None:
        owed_s = self._pace.owed_s(rows)
        if owed_s > 0:
            self._producer.idle(owed_s)

    def _send_batch(self, entry: Entry) -> None:
        rows, ids = entry.rows, entry.sequence_ids
        payload = batch_payload(rows)
        if len(payload) + _HEADERS_BYTES > self._producer.message_bytes_max and len(rows) > 1:
            half = len(rows) // 2
            for at, count in ((0, half), (half, len(rows) - half)):
                part = rows.slice(at, count)
                self._send_batch(Entry(part, ids[at : at + count], entry.deliver_at_ms, entry.version))
            return
        if len(payload) + _HEADERS_BYTES > self._producer.message_bytes_max:
            self._send_single(entry)
            return
        metadata = batch_metadata(self._name, int(ids[0]), int(ids[-1]), _CLOCK.now_ms(), rows)
        entry.mark(metadata)
        self._hand_over(entry, [send_frame(1, metadata, payload, self._compression)])

    def _send_single(self, entry: Entry) -> None:
        metadata = single_metadata(self._name, int(entry.sequence_ids[0]), _CLOCK.now_ms(), entry.rows)
        entry.mark(metadata)
        payload: bytes = entry.rows.value[0].as_py() or b""
        bound = self._producer.message_bytes_max - _HEADERS_BYTES - metadata.ByteSize()
        if len(payload) <= bound:
            self._hand_over(entry, [send_frame(1, metadata, payload, self._compression)])
            return
        self._hand_over(entry, chunk_frames(metadata, payload, self._compression, bound))

    def _hand_over(self, entry: Entry, frames: list[bytes]) -> None:
        is_first = self._last_sequence_id < 0
        for frame in frames:
            self._producer.send(int(entry.sequence_ids[0]), frame)
        self._last_sequence_id = int(entry.sequence_ids[-1])
        self.sent.rows += len(entry.rows)
        self.sent.entries += len(frames)
        if is_first and self.deduplicates is None and self._settings.delivery is Delivery.EXACTLY_ONCE:
            self._producer.flush()
            self._ask_deduplication()
            if not self.deduplicates:
                raise PipelineError(
                    f"{self._producer.topic}: its broker does not deduplicate, so nothing after the first "
                    "entry was sent. Switch it on for the namespace (pulsar-admin namespaces "
                    "set-deduplication TENANT/NAMESPACE --enable), or be content with at-least-once"
                )

    def _ask_deduplication(self) -> None:
        self.deduplicates = self._producer.known_sequence_id() >= self._last_sequence_id

    @property
    def _name(self) -> str:
        assert self._producer.name is not None
        return self._producer.name


def _codes(column: pa.Array) -> Ints:
    return np.asarray(column.dictionary_encode().indices.fill_null(-1), np.int64)


def _ints(batch: pa.RecordBatch, name: str) -> Ints:
    return np.asarray(batch.column(name), np.int64)


def _ms(column: pa.Array) -> Ints:
    """-1: null."""
    return np.asarray(column.cast(pa.int64()).fill_null(-1000), np.int64) // 1000


def _changes(values: Any) -> Flags:
    found: Flags = values[1:] != values[:-1]
    return found
