"""Gives events their numbers, keeps the last ones in memory, and has them written."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import islice
from typing import Final, NamedTuple

import trio

from geminga.clock import Clock, RealClock
from geminga.errors import PeerError
from geminga.events.event import TEXT_MAX, Event, Filter
from geminga.events.event_files import NUMBERS_STEP, EventFiles, next_step
from geminga.events.kinds import KINDS
from geminga.events.recording import NO_COUNTS
from geminga.limits import MIB
from geminga.storage.disk import Disk

EVENTS_MAX: Final = 4096
"""Events in memory."""
EVENTS_BYTES_MAX: Final = 2 * MIB
JOIN_SECONDS: Final = 1.0
"""So long events about the same thing are joined after the first one."""
JOINED_MAX: Final = 1000
"""Things about which events are being joined; further events about other things are recorded singly."""
WRITE_PAUSE_SECONDS: Final = 0.1
"""Between two writes, so that a storm of events is a few writes."""
STREAMS_MAX: Final = 32


class TooManyStreams(PeerError):
    http_status = 429


class Missed(NamedTuple):
    """In place of events that a reader was too slow for."""

    events: int


class _Subject(NamedTuple):
    """What an event is about, without its counts."""

    kind: str
    topic: str
    subscription: str
    bucket: int
    text: str


class _Joined:
    """The events about one subject since one of them was recorded."""

    __slots__ = ("counts", "times", "until_s")

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.times = 0
        self.counts: dict[str, int] = {}
        """Those of the last one."""


class EventLog:
    """One for a broker. `record` from any thread, everything else on the event loop."""

    def __init__(self, disk: Disk, directory: str, clock: Clock) -> None:
        """Reads the number of the last event; `run` makes the directory."""
        self._disk = disk
        self._files = EventFiles(disk, directory)
        self._clock = clock
        self._wall = RealClock()
        self._lock = threading.Lock()
        self._sequence = self._files.last_sequence()
        self._reserved = 0
        """The last number that a process after a crash will not give out again."""
        self._recent: deque[Event] = deque()
        self._recent_bytes = 0
        self._unwritten: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._joining: dict[_Subject, _Joined] = {}
        self._changed = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._streams = 0
        self._is_stopping = False
        self._ended = trio.Event()
        self._recorded: Counter[str] = Counter()

    @property
    def recorded(self) -> Counter[str]:
        """How many events of each kind this process has recorded, those that were joined counted once."""
        return self._recorded

    @property
    def last_sequence(self) -> int:
        return self._sequence

    @property
    def lost(self) -> int:
        """How many events could not be written to disk since the start."""
        return self._files.lost

    # -- in ---------------------------------------------------------------------------------------------

    def record(
        self,
        kind: str,
        *,
        topic: str = "",
        subscription: str = "",
        bucket: int = -1,
        text: str = "",
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """See `recording.Record`."""
        assert counts.keys() <= set(KINDS[kind].counts), (kind, counts)
        subject = _Subject(kind, topic, subscription, bucket, text[:TEXT_MAX])
        with self._lock:
            if KINDS[kind].joins and self._is_joined(subject, dict(counts)):
                return
            self._add(subject, dict(counts))
        self._tell()

    def _is_joined(self, subject: _Subject, counts: dict[str, int]) -> bool:
        joined = self._joining.get(subject)
        if joined is None:
            # The first one is told at once.
            if len(self._joining) < JOINED_MAX:
                self._joining[subject] = _Joined(self._clock.monotonic_s() + JOIN_SECONDS)
            return False
        joined.times += 1
        joined.counts = counts
        return True

    def _add(self, subject: _Subject, counts: dict[str, int], times: int = 1) -> None:
        self._sequence += 1
        self._recorded[subject.kind] += 1
        event = Event(
            sequence=self._sequence,
            time_ms=self._clock.now_ms(),
            wall_ms=self._wall.now_ms(),
            kind=subject.kind,
            topic=subject.topic,
            subscription=subject.subscription,
            bucket=subject.bucket,
            text=subject.text,
            counts=counts,
            times=times,
        )
        self._recent.append(event)
        self._unwritten.append(event)
        self._recent_bytes += event.size_bytes
        while len(self._recent) > EVENTS_MAX or self._recent_bytes > EVENTS_BYTES_MAX:
            self._recent_bytes -= self._recent.popleft().size_bytes

    def _tell(self) -> None:
        # By the token from any thread, the loop's too: events are rare, and one way is simpler than two.
        if self._token is not None:
            self._token.run_sync_soon(self._on_change, idempotent=True)

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # -- out --------------------------------------------------------------------------------------------

    async def recent(self, since: int, limit: int, wanted: Filter) -> list[Event]:
        """The first `limit` events with numbers above `since`; the last ones if `since` is negative. From the
        files, as far as memory does not have them.
        """
        with self._lock:
            kept = list(self._recent)
        first = kept[0].sequence if kept else self._sequence + 1
        if since < 0:
            found = [*wanted.of(kept)][-limit:]
            if len(found) < limit:
                found = [*await self._read(-1, first, limit - len(found), wanted), *found]
            return found
        found = [] if since >= first - 1 else await self._read(since, first, limit, wanted)
        return [*found, *wanted.of(e for e in kept if e.sequence > since)][:limit]

    def latest(self, limit: int, wanted: Filter) -> list[Event]:
        """The last ones of those in memory, the newest first."""
        with self._lock:
            return [*islice(wanted.of(reversed(self._recent)), limit)]

    async def _read(self, since: int, before: int, limit: int, wanted: Filter) -> list[Event]:
        return await self._disk.run(self._files.read, since, before, limit, wanted)

    async def follow(
        self, since: int, wanted: Filter, idle_s: float
    ) -> AsyncGenerator[list[Event] | Missed, None]:
        """Events with numbers above `since` as they come, for ever; an empty list after `idle_s` seconds
        without one. A reader that falls behind what memory has gets `Missed`, and goes on from there.

        Raises TooManyStreams if `STREAMS_MAX` readers follow already. What is older than memory comes from
        the files first.
        """
        if self._streams >= STREAMS_MAX:
            raise TooManyStreams(
                f"{STREAMS_MAX} readers follow the events already: end some, or ask again with since=N"
            )
        self._streams += 1
        try:
            async with aclosing(self._follow(since, wanted, idle_s)) as parts:
                async for part in parts:
                    yield part
        finally:
            self._streams -= 1

    async def _follow(
        self, since: int, wanted: Filter, idle_s: float
    ) -> AsyncGenerator[list[Event] | Missed, None]:
        in_memory = self._first
        if since < in_memory - 1:
            if first := await self.recent(since, EVENTS_MAX, wanted):
                yield first
            # All files were read unless the answer is full. What they do not have is not missed: it was not
            # wanted, or its number was never used.
            behind = first[-1].sequence if first else since
            since = behind if len(first) >= EVENTS_MAX else max(behind, in_memory - 1)
        while True:
            changed = self._changed
            if since < self._first - 1 and since < self._sequence:
                yield Missed(self._first - 1 - since)
                since = self._first - 1
            with self._lock:
                new = [event for event in self._recent if event.sequence > since]
            if new:
                since = new[-1].sequence
                if shown := [*wanted.of(new)]:
                    yield shown
                continue
            with trio.move_on_after(idle_s) as idle:
                await changed.wait()
            if idle.cancelled_caught:
                yield []

    @property
    def _first(self) -> int:
        """The number of the oldest event in memory."""
        return self._recent[0].sequence if self._recent else self._sequence + 1

    # -- life -------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write events behind, and end joining, until `close`. Cancelled: what is unwritten is lost. Numbers
        are reserved when it has started.
        """
        self._token = trio.lowlevel.current_trio_token()
        await self._reserve()
        task_status.started()
        while True:
            changed = self._changed
            if not (self._unwritten or self._is_stopping):
                with trio.move_on_after(JOIN_SECONDS if self._joining else math.inf):
                    await changed.wait()
            self._end_joining()
            if self._unwritten:
                with self._lock:
                    events = [*self._unwritten]
                    self._unwritten.clear()
                await self._reserve()
                await self._disk.run(self._files.append, events)
            elif self._is_stopping:
                await self._disk.run(self._files.reserve, self._sequence)
                self._ended.set()
                return
            if not self._is_stopping:
                await trio.sleep(WRITE_PAUSE_SECONDS)

    async def _reserve(self) -> None:
        """Long before the numbers are used up: `record` does not wait for the disk."""
        last = self._sequence
        if self._reserved - last < NUMBERS_STEP // 2:
            ahead = next_step(last + NUMBERS_STEP // 2)
            if await self._disk.run(self._files.reserve, ahead):
                self._reserved = ahead

    async def close(self) -> None:
        """`run` ends; all that was recorded before is written on return, or could not be."""
        self._is_stopping = True
        self._on_change()
        await self._ended.wait()

    def _end_joining(self) -> None:
        """Record what was joined for long enough; what had nothing to join is forgotten."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            over = [
                subject
                for subject, joined in self._joining.items()
                if joined.until_s <= now_s or self._is_stopping
            ]
            for subject in over:
                joined = self._joining.pop(subject)
                if joined.times:
                    self._add(subject, joined.counts, joined.times)
        if over:
            self._on_change()
