"""Ships the delivery log to a topic: publishes the segments of its files one after the other, each as a
message.

A separate task reads the segments from the files: neither a message nor the log waits for it, and one
segment is in memory at a time. The last message of the topic has the position, and so has a small file
beside the log in case the topic has lost it. Segments that were deleted from the directory before they were
shipped become a `MISSED` event.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import trio

from geminga.delivery_log.log_reader import LogPosition, LogReader, Read
from geminga.delivery_log.notes import MISSED, Event
from geminga.errors import CorruptData, GemingaError, StorageError

if TYPE_CHECKING:
    from geminga.delivery_log.delivery_log import DeliveryLog
    from geminga.storage.disk import Disk

log = logging.getLogger("geminga.broker")

STATE_FILE: Final = "shipped"
STATE_INTERVAL_S: Final = 5.0
"""How often the position is written to the file while segments are shipped."""
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class LogTopic(Protocol):
    """The topic. Both methods raise `GemingaError` when the topic cannot be used now."""

    async def last_position(self) -> LogPosition | None:
        """The position of the last message; None if the topic has none with a position."""
        ...

    async def append(self, segment: bytes, position: LogPosition) -> None:
        """Publish a segment, durable on return. After cancelling, the segment may be in the topic or not."""
        ...

    @property
    def segment_bytes_max(self) -> int: ...


class Part(NamedTuple):
    position: LogPosition
    segment: bytes


class Shipping:
    """Ships until it is stopped. No method raises because of the topic or the disk: an error is logged once,
    and retried.
    """

    def __init__(self, delivery_log: DeliveryLog, topic: LogTopic, disk: Disk) -> None:
        self._log = delivery_log
        self._topic = topic
        self._disk = disk
        self._reader = LogReader(disk, delivery_log.directory)
        self._shipped: LogPosition | None = None
        self._state_due_s = 0.0
        self._is_failing = False
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """Stop. The next process ships the remaining segments."""
        self._scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        with self._scope:
            await self._ship()

    async def _ship(self) -> None:
        retry_s = RETRY_S
        resumed = False
        try:
            while True:
                try:
                    if not resumed:
                        await self._resume()
                        resumed = True
                    await self._ship_next()
                    retry_s = RETRY_S
                    self._is_failing = False
                except GemingaError as error:
                    self._tell(error)
                    # Ask the topic again how far it has come: it may have been deleted, or recreated.
                    resumed = False
                    await trio.sleep(retry_s)
                    retry_s = min(2 * retry_s, RETRY_S_MAX)
        finally:
            with trio.CancelScope(shield=True):
                await self._keep_state()

    async def _resume(self) -> None:
        known = [self._shipped, await self._topic.last_position(), await self._disk.run(self._read_state)]
        positions = [position for position in known if position is not None]
        # A directory that was emptied begins with file 1 again, later than all that was shipped before.
        self._shipped = max(positions, key=lambda position: (position.opened_ms, position), default=None)
        await self._disk.run(self._reader.seek, self._shipped)

    async def _ship_next(self) -> None:
        """Ship the next segment, or wait for one."""
        written = self._log.written
        read = await self._disk.run(self._reader.next, written)
        if read is None:
            await self._log.wait_written(written)
            return
        if read.has_gap:
            missed: Event = (MISSED, self._log.now_ms(), None, None, None, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0)
            log.warning("the delivery log was not shipped in time: events are missing from its topic")
            await self._append(Part(read.position.before, _encoded(0, [missed])))
        for part in await self._disk.run(self._parts, read):
            if self._shipped is None or part.position > self._shipped:
                await self._append(part)

    async def _append(self, part: Part) -> None:
        await self._topic.append(part.segment, part.position)
        self._shipped = part.position
        if trio.current_time() >= self._state_due_s:
            self._state_due_s = trio.current_time() + STATE_INTERVAL_S
            await self._keep_state()

    def _parts(self, read: Read) -> list[Part]:
        """The parts of a segment: a segment that is too large for a message is cut in halves
        until it fits.
        """
        segments = list(_fitting(read.segment, self._topic.segment_bytes_max))
        positions = [read.position._replace(part=number) for number in range(len(segments))]
        positions[-1] = read.position
        return [Part(position, segment) for position, segment in zip(positions, segments, strict=True)]

    # -- where it is -----------------------------------------------------------------------------------------

    async def _keep_state(self) -> None:
        """Write the position to the file. Errors are ignored, because the topic has the position, too."""
        if self._shipped is not None:
            with contextlib.suppress(StorageError):
                await self._disk.run(self._disk.replace_file, self._state_path, self._shipped.encode())

    def _read_state(self) -> LogPosition | None:
        if not self._disk.exists(self._state_path):
            return None
        try:
            return LogPosition.decode(self._disk.read_file(self._state_path))
        except CorruptData:
            return None

    @property
    def _state_path(self) -> str:
        return f"{self._log.directory}/{STATE_FILE}"

    def _tell(self, error: GemingaError) -> None:
        if not self._is_failing:
            log.error("the delivery log cannot be shipped to its topic now, it is tried again: %s", error)
        self._is_failing = True


def _fitting(segment: bytes, bytes_max: int) -> Iterator[bytes]:
    from geminga.delivery_log.log_format import decode_segment, encode_segment

    if len(segment) <= bytes_max:
        yield segment
        return
    whole = decode_segment(segment)
    middle = whole.head.events // 2
    if not middle:
        yield segment
        return
    for rows in (slice(0, middle), slice(middle, None)):
        columns: dict[str, Any] = {}
        names: dict[str, list[str]] = {}
        for name, column in whole.columns.items():
            columns[name] = column[rows].astype("<i8")
        for name, table in (
            ("topic", whole.topics),
            ("subscription", whole.subscriptions),
            ("client", whole.clients),
        ):
            used = sorted({index for index in columns[name].tolist() if index >= 0})
            numbers = {index: number for number, index in enumerate(used)} | {-1: -1}
            columns[name] = [numbers[index] for index in columns[name].tolist()]
            names[f"{name}s"] = [table[index] for index in used]
        yield from _fitting(encode_segment(whole.head.number, columns, **names), bytes_max)


def _encoded(number: int, events: list[Event]) -> bytes:
    from geminga.delivery_log.delivery_log import encoded

    return encoded(number, events)
