"""The opt-in delivery log: plain calls note events, and another thread writes them together.

An event is a tuple in a list, in the order of the format's columns, with names instead of table indexes. Ten
times a second, or when there are many, a thread turns the events into a segment and appends it to the file.
For tests that kill the broker, each call can write its own segment. The log is never synced: it is no part
of the broker's promises. Events that cannot be written are counted, and the log records their number
(MISSED).

`geminga/delivery_log/log_format.py` has the bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from geminga.delivery_log.log_reader import Written
from geminga.delivery_log.notes import (
    CLOSED,
    DUPLICATE,
    MISSED,
    OPENED,
    PUBLISHED,
    DueTimes,
    Event,
    PublishedRun,
    SubscriptionNotes,
    noted_of,
)
from geminga.errors import StorageError

if TYPE_CHECKING:
    from geminga.clock import Clock
    from geminga.storage.disk import Disk, File

log = logging.getLogger("geminga.broker")

WRITE_EVENTS: Final = 50_000
"""A segment is written as soon as it has this many events."""
SEGMENT_EVENTS: Final = 200_000
"""The limit of events in one segment."""
RETRY_S: Final = 1.0
PENDING_EVENTS_MAX: Final = 400_000
"""The limit of waiting events; further events are missed."""
CLOSE_SECONDS: Final = 5.0
NUMBER_MAX: Final = 1 << 61
NAME_CHARS_MAX: Final = 0xFFFF // 4
"""The limit of a name, so that it fits any column or table of a segment. A character has at most
four bytes.
"""


class DeliveryLog:
    """Notes events from `run` until `close`. No method raises because of a disk: a log that cannot be
    written is reported, and the write is retried.
    """

    def __init__(
        self,
        directory: str,
        disk: Disk,
        clock: Clock,
        *,
        interval_s: float = 0.1,
        file_bytes_max: int,
        total_bytes_max: int,
        own_topic: str = "",
    ) -> None:
        """An event is written at most `interval_s` after it was noted; 0: at once, on the loop, so that even
        a killed process leaves none out. `total_bytes_max` limits all files together, the oldest are deleted
        first; 0: no limit. `own_topic` is the topic to which the log is shipped, which is not logged.
        """
        self.directory = directory
        self._own_topic = own_topic
        self._disk = disk
        self._interval_s = interval_s
        self._file_bytes_max = file_bytes_max
        self._total_bytes_max = total_bytes_max
        self._events: list[Event] = []
        self._missed = 0
        self._wake = trio.Event()
        self._done = trio.Event()
        self._closing = False
        self._file: File | None = None
        self._number = 0
        self._segments = 0
        self._more_written = trio.Event()
        self._is_failing = False
        self.now_ms = clock.now_ms
        self._step_ms = clock.step_ms

    # -- noting ----------------------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        self.note_all((event,))

    def note_all(self, events: Iterable[Event]) -> None:
        pending = self._events
        before = len(pending)
        pending.extend(events)
        if len(pending) == before:
            return
        if len(pending) > PENDING_EVENTS_MAX:
            self._missed += len(pending) - PENDING_EVENTS_MAX
            del pending[PENDING_EVENTS_MAX:]
        if not self._interval_s and self._file is not None:
            self._write_now()
        elif before < WRITE_EVENTS <= len(pending):
            self._wake.set()

    def published(
        self, topic: str, ledger_id: int, first_entry_id: int, runs: Sequence[PublishedRun]
    ) -> None:
        """The entries of these runs, numbered from `first_entry_id`, are durable."""
        now_ms = self.now_ms()
        events: list[Event] = []
        entry_id = first_entry_id
        for run in runs:
            for i, sequence_id in enumerate(run.sequence_ids):
                messages, deliver_at_ms, publish_ms = noted_of(run.parsed[i] if run.parsed else None)
                head = (PUBLISHED, now_ms, topic, None, run.producer.name, ledger_id, entry_id, -1)
                events.append((*head, messages, 0, deliver_at_ms, publish_ms, sequence_id, 0, 0))
                entry_id += 1
        self.note_all(events)

    def duplicate(self, topic: str, producer: str, sequence_id: int, messages: int) -> None:
        now_ms = self.now_ms()
        self.note((DUPLICATE, now_ms, topic, None, producer, 0, 0, -1, messages, 0, 0, 0, sequence_id, 0, 0))

    def of_topic(self, name: str) -> DeliveryLog | None:
        """The log for the events of a topic; None if they are not logged."""
        return None if name == self._own_topic else self

    def subscription(self, topic: str, name: str, due_times: DueTimes) -> SubscriptionNotes:
        return SubscriptionNotes(self.note_all, self.now_ms, self._step_ms, topic, name, due_times)

    # -- what is written -------------------------------------------------------------------------------------

    @property
    def written(self) -> Written:
        """The current file, and how many of its segments can be read."""
        return Written(self._number, self._segments)

    async def wait_written(self, known: Written) -> None:
        """Return when more than this can be read."""
        while self.written == known:
            await self._more_written.wait()

    def _tell_written(self) -> None:
        self._more_written.set()
        self._more_written = trio.Event()

    # -- writing ---------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write noted events until `close`, or until cancelled. Raises StorageError before it has started,
        if the directory cannot be used.
        """
        await self._disk.run(self._begin_file, self.now_ms())
        self.note((OPENED, self.now_ms(), None, None, None, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0))
        task_status.started()
        while not (self._closing and not self._events):
            if not self._closing:
                with trio.move_on_after(self._interval_s or RETRY_S):
                    await self._wake.wait()
                self._wake = trio.Event()
            if self._events:
                await self._write()
        await self._disk.run(self._end_file)
        self._done.set()

    async def close(self) -> None:
        """Write the remaining events, and one that marks the log as complete. Returns when that is done, or
        after `CLOSE_SECONDS`.
        """
        if not self._closing:
            self.note((CLOSED, self.now_ms(), None, None, None, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0))
            self._closing = True
            self._wake.set()
        with trio.move_on_after(CLOSE_SECONDS):
            await self._done.wait()

    async def _write(self) -> None:
        events, count = self._taken()
        try:
            await self._disk.run(self._append, events, self.now_ms())
        except StorageError as error:
            await self._disk.run(self._end_file)
            self._failed(count, error)
        else:
            self._is_failing = False
            self._tell_written()

    def _write_now(self) -> None:
        events, count = self._taken()
        try:
            self._append(events, self.now_ms())
        except StorageError as error:
            self._end_file()
            self._failed(count, error)
        else:
            self._tell_written()

    def _taken(self) -> tuple[list[Event], int]:
        """The events to write, and their number including the missed ones."""
        events, self._events = self._events, []
        missed, self._missed = self._missed, 0
        count = missed + len(events)
        if missed:
            events.append((MISSED, events[-1][1], None, None, None, 0, 0, -1, missed, 0, 0, 0, -1, 0, 0))
        return events, count

    def _failed(self, count: int, error: StorageError) -> None:
        self._missed += count
        if not self._is_failing:
            log.error("the delivery log cannot be written, events are missing from it: %s", error)
        self._is_failing = True

    def _append(self, events: list[Event], now_ms: int) -> None:
        if self._file is None or self._file.size() >= self._file_bytes_max:
            self._begin_file(now_ms)
        assert self._file is not None
        for first in range(0, len(events), SEGMENT_EVENTS):
            self._file.append(encoded(self._segments, events[first : first + SEGMENT_EVENTS]))
            self._segments += 1

    def _begin_file(self, now_ms: int) -> None:
        """Begin the file with the next number; delete old files while all together are too large."""
        from geminga.delivery_log.log_format import FileHead, encode_file_head, file_name, file_number

        disk, directory = self._disk, self.directory
        self._end_file()
        disk.make_directory(directory)
        numbers = [number for name in disk.list(directory) if (number := file_number(name)) is not None]
        number = max(numbers, default=0) + 1
        self._file = disk.create(os.path.join(directory, file_name(number)))
        self._number, self._segments = number, 0
        self._file.append(encode_file_head(FileHead(number, now_ms)))
        if self._total_bytes_max:
            self._drop_oldest(sorted(numbers))

    def _end_file(self) -> None:
        """Delete a file without a segment: on a full disk each attempt would leave one."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(StorageError):
                file.close()
                if not self._segments:
                    self._disk.unlink(file.path)

    def _drop_oldest(self, numbers: list[int]) -> None:
        from geminga.delivery_log.log_format import file_name

        paths = [os.path.join(self.directory, file_name(number)) for number in numbers]
        sizes = []
        for path in paths:
            file = self._disk.open(path)
            sizes.append(file.size())
            file.close()
        excess = sum(sizes) + self._file_bytes_max - self._total_bytes_max
        for path, size in zip(paths, sizes, strict=True):
            if excess <= 0:
                return
            self._disk.unlink(path)
            excess -= size


def encoded(number: int, events: Sequence[Event]) -> bytes:
    """One segment. Values that a client has made up are brought into the bounds of their columns."""
    try:
        return _encoded(number, events)
    except (OverflowError, ValueError):
        return _encoded(number, [tuple(map(_fitting, event)) for event in events])  # type: ignore[misc]


def _encoded(number: int, events: Sequence[Event]) -> bytes:
    from geminga.delivery_log.log_format import COLUMNS, TABLES, encode_segment

    columns: dict[str, Any] = dict(zip(COLUMNS, zip(*events, strict=True), strict=True))
    tables: dict[str, list[str]] = {}
    for name in TABLES:
        indexes: dict[str | None, int] = {None: -1}
        columns[name] = [indexes.setdefault(value, len(indexes) - 1) for value in columns[name]]
        tables[f"{name}s"] = [value for value in indexes if value is not None]
    return encode_segment(number, columns, **tables)


def _fitting(value: int | str | None) -> int | str | None:
    """Events with extreme sequence ids, positions and times, and names of any length, brought
    into bounds.
    """
    if isinstance(value, int):
        return max(-NUMBER_MAX, min(value, NUMBER_MAX))
    if value is not None and len(value) > NAME_CHARS_MAX:
        return value[:NAME_CHARS_MAX]
    return value
