"""Whether an earlier attempt at the same task has stored rows already: content tells, not ids alone. Pure.

Each entry that is written exactly once carries a note in the field `uuid` of its metadata, which consumers
read only of chunks: the sequence id of its last row, the digest of all rows that its producer has sent in
the micro-batch so far, whether these are all, and the run that wrote it. A repetition compares the digest
with its own at the same row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from fastcrc.crc64 import xz as crc_64

from geminga.limits import MIB
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.writing.last_entries import StoredEntry, Window
from geminga.pipeline.writing.sequences import batch_of, bounds

TAIL_BYTES = 4 * MIB
"""How much of a partition is looked at before a first attempt, if the broker does not know its producer."""
SEARCH_BYTES_MAX = 256 * MIB
"""How much is looked at for what is known, or likely, to be there."""
CLOCKS_APART_MS = 60_000
"""By how much the clocks of producers differ at most."""
_NOTE = re.compile(r"rows-([0-9a-f]{16})-([0-9a-f]{16})-(all|more)-(.*)", re.DOTALL)
NO_ROWS = 0
"""The digest of no rows."""


@dataclass(frozen=True)
class Task:
    """Which part of which job these rows are."""

    producer_prefix: str
    """The same whenever the job runs again."""
    partition: int
    batch_id: int
    run: str = ""
    """Of the job or query: another when it is started again."""
    in_order: bool = True
    """A micro-batch begins when the one before it is written, as in a stream."""
    attempt: int = 0
    first_run_ms: int = 0
    """No run under this prefix was before that time, in ms since 1970; 0: nothing is known of that."""

    @property
    def is_first(self) -> bool:
        """No attempt at it can have been before."""
        return self.first_run_ms > 0 and self.attempt == 0

    @property
    def producer(self) -> str:
        return f"{self.producer_prefix}-{self.partition}"


class Note(NamedTuple):
    """What an entry says of the rows of its producer in the micro-batch, up to its own last."""

    last_sequence_id: int
    digest: int
    is_all: bool
    """The attempt had no more rows for this producer."""
    run: str

    def __str__(self) -> str:
        amount = "all" if self.is_all else "more"
        return f"rows-{self.last_sequence_id:016x}-{self.digest:016x}-{amount}-{self.run}"


def note_of(text: str) -> Note | None:
    match = _NOTE.fullmatch(text)
    return None if match is None else Note(int(match[1], 16), int(match[2], 16), match[3] == "all", match[4])


def digest_of(encoded_rows: bytes, before: int) -> int:
    """Of the rows that have the digest `before` and these, however they are cut into batches."""
    return int(crc_64(encoded_rows, before))


@dataclass
class Search:
    """For the last entry of a task's producer, from the end of a topic back."""

    topic: str
    task: Task
    is_known: bool
    """The broker knows that the producer has written in this micro-batch."""
    found: Note | None = None
    _bytes: int = field(default=0, init=False)
    _is_suspicious: bool = field(default=False, init=False)

    def is_done(self, window: Window) -> bool:
        """After one more window. Raises `PipelineError` where it cannot be told what there is."""
        for entry in window.entries:
            if entry.producer == self.task.producer:
                self.found = self._own(entry)
                return True
            if self._tells_enough(entry):
                return True
        self._bytes += window.read_bytes
        if not self.is_known and window.newest_publish_time_ms < self.task.first_run_ms - CLOCKS_APART_MS:
            return True
        is_likely = self.is_known or self._is_suspicious or (self.task.in_order and self.task.batch_id > 0)
        if not is_likely:
            return self._bytes >= TAIL_BYTES
        if self._bytes >= SEARCH_BYTES_MAX:
            raise not_comparable(
                self.topic, self.task, f"its last {SEARCH_BYTES_MAX // MIB} MiB hold no trace of it"
            )
        return False

    def _own(self, entry: StoredEntry) -> Note | None:
        note = note_of(entry.uuid)
        if note is None:
            raise not_comparable(
                self.topic, self.task, "its entries carry no digest (an older version wrote them)"
            )
        return note

    def _tells_enough(self, entry: StoredEntry) -> bool:
        """Of another task of the same job: whether it was written before any attempt at ours."""
        prefix, _, number = entry.producer.rpartition("-")
        if prefix != self.task.producer_prefix or not number.isdecimal():
            return False
        note = note_of(entry.uuid)
        if note is None:
            return False
        batch_id = batch_of(note.last_sequence_id)
        if batch_id == self.task.batch_id and note.run != self.task.run:
            self._is_suspicious = True
        return self.task.in_order and batch_id < self.task.batch_id and not self.is_known


def check_not_later(topic: str, task: Task, last_sequence_id: int) -> None:
    """Raises `PipelineError` if a later micro-batch has been written under the name."""
    if last_sequence_id >= bounds(task.batch_id)[1]:
        raise PipelineError(
            f"{topic}: producer {task.producer} has written micro-batch {batch_of(last_sequence_id)}, and "
            f"this is {task.batch_id}: the checkpoint was deleted or is an older one, or another query uses "
            "the name. Rows would be dropped as repetitions, so nothing was written to this partition. Give "
            "another producerNamePrefix"
        )


def other_rows(topic: str, task: Task, run: str) -> PipelineError:
    by = f" (run {run})" if run and run != task.run else ""
    return PipelineError(
        f"{topic}: producer {task.producer} has written other rows, or in another order{by}. If that was "
        "another job, give this one a producerNamePrefix of its own. If it was this one, it has to have the "
        "same rows in the same order in the same tasks when it runs again: keep the number of partitions, "
        "and where a shuffle (groupBy, join, repartition) changes the order, set taskOrder=content from the "
        "start. A query that cannot have the same rows again is run with exactlyOnce=false until this "
        "micro-batch is done; some of its rows are then there twice"
    )


def not_comparable(topic: str, task: Task, why: str) -> PipelineError:
    return PipelineError(
        f"{topic}: cannot tell whether rows of producer {task.producer} in micro-batch {task.batch_id} are "
        f"stored already: {why}. Brokers forget producers "
        "(brokerDeduplicationProducerInactivityTimeoutMinutes) and trim messages (retention). Nothing was "
        "written to this partition. To go on, set exactlyOnce=false until this micro-batch is done, which "
        "writes its rows again, or checkRepetition=false, which takes the broker's word for what is stored"
    )
