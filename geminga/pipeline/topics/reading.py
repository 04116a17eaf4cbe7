"""Reads a range of one topic: whole entries as the broker sends them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from geminga.clock import RealClock
from geminga.errors import ServerError
from geminga.limits import MIB
from geminga.pipeline.client.entry_stream import PERMITS, EntryStream
from geminga.pipeline.client.frames import FrameBuffer
from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.errors import POLL_TIMEOUT, Access, BrokerUnreachable, DataLost, PipelineError, Refused
from geminga.pipeline.topics.gaps import DELETED, Gaps
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.unreadable import entries_of

TAKE_BYTES = 4 * MIB
"""A buffer of this size is decoded at once."""
RETRY_SECONDS = 20.0
"""How long a broker may be unavailable, counted from its last data, before reading fails, unless the access
has more patience.
"""
PING_SECONDS = 4.0
"""After this silence the reader sends PING to the broker."""
SILENT_SECONDS = 12.0
"""After this silence the reader opens another connection."""
_GRACE_SECONDS = 5.0
"""The least time for a broker that is back to send something, however long it was unavailable."""
_PAUSE_SECONDS = 0.5
_QUIET_SECONDS = 0.02
"""After this time without data, the received entries are decoded, because the broker may wait
for permits.
"""
_CLOCK = RealClock()


class EntryReader:
    """Takes the entries of a range, buffer by buffer, and continues after a broker was unavailable for a
    while.
    """

    def __init__(
        self,
        access: Access,
        wanted: Range,
        *,
        poll_timeout_s: float,
        take_bytes: int = TAKE_BYTES,
        permits: int = PERMITS,
    ) -> None:
        self._permits = permits
        self._entry_messages = 1.0
        """The average number of messages in an entry, which decides how soon the permits are used up."""
        self._access = access
        self._wanted = wanted
        self._poll_timeout_s = poll_timeout_s
        self._retry_s = max(RETRY_SECONDS, access.patience_s)
        self._take_bytes = take_bytes
        self._next = wanted.start.entry
        self._seen_any = False
        self._is_new_connection = True
        self._is_empty = False
        """Whether the broker has said that nothing is left in the topic."""
        self._gaps = Gaps(access, wanted)
        self._heard_s = self._away_since_s = self._ask_at_s = self._silent_until_s = math.inf

    def buffers(self) -> Iterator[Entries]:
        """Entries of the range in order; each buffer is valid until the next one is requested.

        Raises `PipelineError`: `BrokerUnreachable` when the broker is unavailable too long, `DataLost`.
        """
        if self._wanted.start >= self._wanted.end:
            return
        self._hear()
        try:
            yield from self._persistently()
        finally:
            self._gaps.close()

    def _persistently(self) -> Iterator[Entries]:
        while True:
            try:
                yield from self._connected()
                return
            except BrokerUnreachable as error:
                self._away_since_s = min(self._away_since_s, self._heard_s)
                if _CLOCK.monotonic_s() - self._away_since_s >= self._retry_s:
                    raise BrokerUnreachable(
                        f"{self._wanted.topic}: reading was given up after {self._retry_s:.0f} s: ",
                        error,
                        ". See whether the broker runs and is not overloaded, and start the query again (a "
                        "larger ",
                        POLL_TIMEOUT,
                        " waits longer)",
                    ) from None
                threading.Event().wait(_PAUSE_SECONDS)

    def _connected(self) -> Iterator[Entries]:
        wanted = self._wanted
        until_s = min(self._away_since_s, self._heard_s) + self._retry_s
        self._is_new_connection = True
        try:
            stream = EntryStream(
                self._access, wanted.topic, self._begin(), permits=self._permits, until_s=until_s
            )
        except Refused as error:
            if error.code != ServerError.TOPIC_NOT_FOUND:
                raise
            if wanted.loss_allowed:
                return
            raise DataLost(f"{wanted.topic} ", *DELETED) from None
        is_left = False
        try:
            if not self._check_end(stream.last):
                return
            buffer = stream.buffer
            waited_since = _CLOCK.monotonic_s()
            self._ask_at_s = waited_since + PING_SECONDS
            self._silent_until_s = min(
                max(until_s, waited_since + _GRACE_SECONDS), waited_since + SILENT_SECONDS
            )
            while True:
                left = waited_since + self._poll_timeout_s - _CLOCK.monotonic_s()
                came = self._receive(stream, min(left, _QUIET_SECONDS) if buffer.frames else left)
                if not came and not buffer.frames:
                    if self._is_empty and self._wanted.loss_allowed:
                        return
                    if self._is_empty and self._wanted.is_guarded:
                        raise self._gaps.nothing_is_left()
                    raise PipelineError(
                        f"{wanted.topic}: nothing more came within {self._poll_timeout_s:.0f} s "
                        "(pollTimeoutMs); "
                        f"read up to {self._next[0]}:{self._next[1]}, wanted up to {wanted.end}"
                    )
                is_end = buffer.last_position is not None and self._is_end(buffer.last_position)
                if came and not is_end and not self._is_enough(buffer):
                    if buffer.frames:
                        waited_since = _CLOCK.monotonic_s()
                    continue
                entries = entries_of(wanted.topic, buffer.take(), self._wanted.past)
                permits = int(entries.messages.sum())
                self._entry_messages = permits / max(len(entries), 1)
                if len(entries):
                    entries = self._ours(entries)
                self._away_since_s = math.inf
                if len(entries):
                    yield entries
                if is_end:
                    is_left = True
                    return
                waited_since = self._hear()
                buffer.settle()
                stream.flow(permits)
        finally:
            if is_left:
                stream.leave()
            else:
                stream.close()

    def _is_enough(self, buffer: FrameBuffer) -> bool:
        """Whether to decode the received entries now. Messages that compress well use up the permits before
        they fill a buffer.
        """
        return (
            buffer.is_corrupt
            or buffer.frame_bytes >= self._take_bytes
            or len(buffer.room()) == 0
            or buffer.frames * self._entry_messages >= self._permits / 2
        )

    def _receive(self, stream: EntryStream, timeout_s: float) -> bool:
        """Receive data; False if nothing came in time. Raises `BrokerUnreachable` if nothing
        comes at all.
        """
        now_s = _CLOCK.monotonic_s()
        until_s = now_s + timeout_s
        while now_s < until_s:
            wake_at_s = min(until_s, self._ask_at_s, self._silent_until_s)
            if stream.receive(max(wake_at_s - now_s, _QUIET_SECONDS)):
                self._hear()
                return True
            now_s = _CLOCK.monotonic_s()
            if now_s >= self._silent_until_s:
                raise BrokerUnreachable("the broker is connected but silent, and does not answer a PING")
            if now_s >= self._ask_at_s:
                self._ask_at_s = math.inf
                stream.ping()
        return False

    def _hear(self) -> float:
        """Data has arrived, or this process was busy: restart the timers of silence. Returns the time."""
        self._heard_s = _CLOCK.monotonic_s()
        self._ask_at_s = self._heard_s + PING_SECONDS
        self._silent_until_s = self._heard_s + SILENT_SECONDS
        return self._heard_s

    def _check_end(self, last: MessageId) -> bool:
        """Whether there is anything to read. Raises `DataLost` for a topic that ends before the
        range does.
        """
        end = MessageId(last.ledger_id, last.entry_id + 1, 0)
        self._is_empty = last.entry_id < 0
        if end >= self._wanted.end:
            return True
        if not self._wanted.loss_allowed:
            raise DataLost(
                f"{self._wanted.topic} ends at {last}, but messages up to {self._wanted.end} were there when "
                f"the query was planned: the topic ",
                *DELETED,
            )
        self._wanted = replace(self._wanted, end=end)
        return last.entry_id >= 0 and self._next < end.entry

    def _begin(self) -> MessageId:
        ledger_id, entry_id = self._next
        if self._seen_any or (self._wanted.check_previous and entry_id > 0):
            entry_id -= 1  # is there, or was; if it comes, nothing between is missing
        return MessageId(ledger_id, max(entry_id, 0) if ledger_id >= 0 else -1, 0)

    def _is_end(self, position: tuple[int, int]) -> bool:
        """Whether nothing of the range comes after the entry at `position`."""
        end = self._wanted.end
        following = (position[0], position[1] + 1)
        return following > end.entry or (following == end.entry and end.batch_index == 0)

    def _ours(self, entries: Entries) -> Entries:
        """The wanted entries: not before the next one, and not after the end. Repeated entries
        count once.
        """
        entries = entries.once()
        reconnected, self._is_new_connection = self._is_new_connection, False
        self._gaps.check(entries, self._next, begins=not self._seen_any, reconnected=reconnected)
        from_ledger, from_entry = self._next
        ledger_id, entry_id = entries.ledger_id, entries.entry_id
        early = (ledger_id < from_ledger) | ((ledger_id == from_ledger) & (entry_id < from_entry))
        past = self._wanted.past
        late = (ledger_id > past[0]) | ((ledger_id == past[0]) & (entry_id >= past[1]))
        self._seen_any = True
        last = int(ledger_id[-1]), int(entry_id[-1]) + 1
        self._next = max(self._next, last)
        if early.any() or late.any():
            return entries.select(np.flatnonzero(~early & ~late))
        return entries
