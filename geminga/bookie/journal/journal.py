"""The write-ahead journal for the event loop: a queue of runs of entries, and one callback per group.

While one group is synced, the next one gathers in the queue. So groups grow as the disk gets slower, and a
single entry is written at once. With `threaded`, a dedicated thread takes the queue and notifies the loop
once per group. Otherwise a task does the work inline, for a simulated disk.

If the loop reports the beginning and end of its turns, the thread is woken at the end of one. Small groups
without a waiting publisher then keep a distance to the last group.

The thread may wait a little for a group to fill (`journal_group_wait_s`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from geminga.bookie.journal.bell import Bell
from geminga.bookie.journal.files import JournalFiles, WrittenGroup
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import RECORD_PREFIX_BYTES
from geminga.bookie.records.settings import BookieSettings
from geminga.clock import RealClock
from geminga.errors import StorageError
from geminga.storage.disk_errors import DiskFull

# Polling, in place of a condition that each append would notify: an append must cost no system call, and the
# wait is off by default (`journalMaxGroupWaitMSec`).
FILL_CHECK_S = 0.001
"""How often a journal checks whether its group has filled."""
# The distance saves syncs and costs latency. From this many entries on one sync is shared well enough: with
# 32 a publisher at full speed had twice the groups, and each message cost a twentieth more. A publisher with
# fewer in flight gets that many receipts for each distance.
SPACED_ENTRIES_MAX = 128
"""This many entries are written at once, even shortly after the last group."""
_monotonic_s = RealClock().monotonic_s


class Adder(Protocol):
    """The writer of a ledger's entries. Entries of one adder have consecutive ids."""

    ledger_id: int
    name: LedgerName | None
    """The ledger's name, if known; the journal stores it with entry 0."""

    def durable(self, last_entry_id: int) -> None:
        """Report that every entry up to this one is durable and can be read."""
        ...

    def refused(self, error: DiskFull) -> None:
        """Report that no entry that was queued is in the journal, for lack of space."""
        ...


QueuedRun = tuple[Adder, int, list[bytes]]
"""Consecutive entries: the adder, the id of the first, the bodies."""


class _Refused(NamedTuple):
    """A group for which there was no space."""

    error: DiskFull
    adders: list[Adder]
    record_bytes: int


class Journal:
    """One writer of entries: `append` takes them, its thread writes them."""

    def __init__(
        self,
        files: JournalFiles,
        settings: BookieSettings,
        *,
        on_group: Callable[[WrittenGroup, list[tuple[Adder, int]]], None],
        on_full: Callable[[DiskFull], None],
        on_failed: Callable[[StorageError], None],
        threaded: bool,
    ) -> None:
        """`on_group(group, [(adder, its last entry id)])`, `on_full` and `on_failed` are called on the loop,
        in order.
        """
        self.files = files
        self._queue: deque[QueuedRun] = deque()
        # Two counters and no difference: the loop writes the one and the thread the other, so that neither
        # needs a lock.
        self._entries_queued = self._entries_taken = 0
        """Entries that have been in the queue, and those of them that a group has taken."""
        self.queued_bytes = 0
        """Bytes of records that were accepted and not yet reported durable."""
        self.idle = True
        """The writer sleeps, or is about to check the queue once more: it has to be woken."""
        self._entries_max = settings.journal_group_entries_max
        self._bytes_max = settings.journal_group_bytes_max
        self._on_group = on_group
        self._on_full = on_full
        self._on_failed = on_failed
        self._threaded = threaded
        self._wake_event = trio.Event()
        self._done: deque[tuple[WrittenGroup, list[tuple[Adder, int]]] | _Refused | StorageError] = deque()
        self._is_refusing = False
        """No group is written until the loop has refused all entries that are queued: an entry behind refused
        ones would get a wrong id.
        """
        self._stopping = False
        self._group_wait_s = settings.journal_group_wait_s
        self._spacing_s = settings.journal_spacing_s
        self._began_s = -math.inf
        """When the last group began."""
        self._is_hurried = False
        """Whether a publisher began to wait since the last group was taken."""
        self._is_held = False
        """Whether the thread sleeps although the queue is not empty."""
        self._hold_over = threading.Event()
        """Ends that sleep before its time."""
        self._waiting_since_s = 0.0
        """No entry in the queue is older than this."""
        # For the statistics of each group: no clock is read for an entry.
        self._oldest_s = 0.0
        """As `_waiting_since_s`, for entries that the thread has not taken yet."""
        self._stop_wanted = threading.Event()
        self._follows_turns = False
        self._is_wake_wanted = False
        """Whether to wake the thread at the end of this turn."""
        self._loop_sleeps = True
        """The loop sleeps or is about to, so the thread has to notify it of a group. Otherwise the loop
        checks by itself before it sleeps.
        """
        self._broken = False
        self._bell: Bell | None = None
        """Set while the thread runs."""

    @property
    def queued_entries(self) -> int:
        """That no group has taken."""
        return self._entries_queued - self._entries_taken

    @property
    def groups_unreported(self) -> int:
        """Durable, and the loop has not been told."""
        return len(self._done)

    def append(self, adder: Adder, first: int, bodies: list[bytes]) -> None:
        """Queue consecutive entries, after the previous ones of the same adder. Never waits. A group takes
        them whole, so that it may exceed its limits by one such run. The list is the journal's from now on.
        """
        # Counted by the loop alone: the thread takes entries, the loop subtracts them once they are reported.
        self.queued_bytes += sum(map(len, bodies)) + len(bodies) * RECORD_PREFIX_BYTES
        self._entries_queued += len(bodies)
        self._queue.append((adder, first, bodies))
        if self.idle:
            self._wake()

    def _wake(self) -> None:
        self.idle = False
        self._oldest_s = _monotonic_s()
        if self._follows_turns:
            self._is_wake_wanted = True
        elif self._threaded:
            self._wake_thread()
        else:
            self._wake_event.set()

    def _wake_thread(self) -> None:
        # Without a bell there is no thread yet, which looks at the queue before it sleeps, or none any more.
        if self._bell is not None:
            self._bell.wake()

    def hurry(self) -> None:
        """A publisher waits for the entry that it has just queued: begin its group at once."""
        self._is_hurried = True

    def follow_turns(self, follows: bool) -> None:
        """Within this context the loop calls `begin_turn` and `end_turn` at the edges of each turn. The
        thread is then woken at the end of a turn, when the loop releases the interpreter anyway, and finished
        groups are reported at the beginning of the next turn.
        """
        self._follows_turns = follows and self._threaded
        # The bell first: `end_turn` then looks for groups whose ring went to a loop that followed its turns.
        if self._bell is not None:
            self._bell.follow(self._follows_turns)
        self.end_turn()

    def end_turn(self) -> None:
        """The loop is about to wait for events. Wakes no task."""
        self._loop_sleeps = True
        # `_loop_sleeps` must be set before this look: a group done in between is rung for by the thread, and
        # one done before is seen here. In the other order a receipt could wait for the next unrelated event.
        if self._done and self._bell is not None:
            self._bell.ring()  # the thread may have looked before that
        if self._is_held and self._may_begin():
            self._is_held = False
            self._hold_over.set()
        if self._is_wake_wanted:
            self._is_wake_wanted = False
            self._wake_thread()

    def begin_turn(self) -> None:
        """The loop has collected its events: report durable groups."""
        self._loop_sleeps = not self._follows_turns
        if self._done:
            self._deliver()

    def stop(self) -> None:
        """Write what is queued, then let `run` return."""
        self._stopping = True
        self._stop_wanted.set()
        self._wake()
        self.end_turn()

    async def run(self) -> None:
        """Run until `stop`. Cancelling writes the queue first. Raises StorageError if the disk has failed."""
        try:
            if self._threaded:
                await self._run_thread()
            else:
                await self._run_inline()
        finally:
            try:
                # After a failed write nothing may be written: the kernel may have dropped the pages that it
                # could not write and report success for the next sync ("fsyncgate"). The failure stays final
                # for this process.
                self._deliver()
                while self._queue and not self._broken:  # cancelled before the thread had begun
                    self._write_group()
                    self._deliver()
            finally:
                self._deliver()

    async def _run_thread(self) -> None:
        failure: StorageError | None = None
        with Bell(self._deliver) as bell:
            bell.follow(self._follows_turns)
            self._bell = bell
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_when_cancelled)
                try:
                    # to_thread waits for the thread when cancelled, too, and keeps it to itself.
                    await trio.to_thread.run_sync(self._work, bell, limiter=trio.CapacityLimiter(1))
                except StorageError as error:
                    failure = error
                nursery.cancel_scope.cancel()
            self._bell = None
        if failure is not None:
            raise failure

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.stop()

    async def _run_inline(self) -> None:
        while True:
            if self._queue:
                self._write_group()
                self._deliver()
                # The simulated disk does not block, so without this the loop would see nothing else while the
                # queue fills.
                await trio.lowlevel.checkpoint()
            elif self._stopping:
                return
            else:
                self.idle = True
                self._wake_event = trio.Event()
                await self._wake_event.wait()

    def _work(self, bell: Bell) -> None:
        """The body of the thread."""
        self._waiting_since_s = _monotonic_s()
        while True:
            if self._is_refusing:
                if self._stopping:
                    return  # the loop may not deliver any more; `run` refuses the rest
                bell.sleep(rings=self._must_ring())
                continue
            if self._queue:
                if self._group_wait_s:
                    self._wait_for_more()
                elif self._follows_turns:
                    self._keep_distance()
                self._write_group()
                # Without more to write the thread sleeps, which rings.
                if self._queue and self._must_ring():
                    bell.ring()
                continue
            # Announce the sleep, then look again: an append after the announcement leaves a wake-up.
            self.idle = True
            if self._queue:
                self.idle = False
                if self._must_ring():  # of the group before, as it does not sleep
                    bell.ring()
            elif self._stopping:
                return
            else:
                bell.sleep(rings=self._must_ring())
                self.idle = False
            self._waiting_since_s = _monotonic_s()

    def _must_ring(self) -> bool:
        """Whether a group has to be rung for. If not, the loop looks for it before it sleeps."""
        return self._loop_sleeps and bool(self._done)

    def _wait_for_more(self) -> None:
        end_s = self._waiting_since_s + self._group_wait_s
        while (left_s := end_s - _monotonic_s()) > 0 and not self._stop_wanted.is_set():
            if self.queued_entries >= self._entries_max or self.queued_bytes >= self._bytes_max:
                break
            self._stop_wanted.wait(min(left_s, FILL_CHECK_S))
        self._waiting_since_s = _monotonic_s()

    def _keep_distance(self) -> None:
        """Space groups of entries without a waiting publisher `journal_spacing_s` apart. Otherwise a
        publisher that keeps sending would cost a sync for each entry. Many entries are worth a sync at once.
        """
        now_s = _monotonic_s()
        left_s = self._began_s + self._spacing_s - now_s
        if left_s > 0:
            self._hold_over.clear()
            self._is_held = True  # before the look: from here on `end_turn` does it
            if not self._may_begin():
                self._hold_over.wait(left_s)
            self._is_held = False
            now_s = _monotonic_s()
        self._began_s = now_s

    def _may_begin(self) -> bool:
        # Without turns no `end_turn` follows that could end the distance before its time.
        is_wanted = self._is_hurried or self._stopping or not self._follows_turns
        return is_wanted or self.queued_entries >= SPACED_ENTRIES_MAX

    def _write_group(self) -> None:
        self._is_hurried = False
        # Cleared before the queue is read: a publisher that begins to wait meanwhile sets it again, and the
        # next group begins at once. Cleared afterwards, its wish would be lost and its receipt delayed.
        popleft = self._queue.popleft
        bytes_left, entries_left = self._bytes_max, self._entries_max
        adders: dict[Adder, tuple[int, int, list[bytes]]] = {}
        names: list[tuple[int, LedgerName]] = []
        began_s, oldest_s = _monotonic_s(), self._oldest_s
        self._oldest_s = began_s
        # As many as are queued now: publishers add to the queue meanwhile.
        for _ in range(len(self._queue)):
            if bytes_left <= 0 or entries_left <= 0:
                self._oldest_s = oldest_s
                break
            adder, first, bodies = popleft()
            # Grouped by adder: recovery reads the group as runs, and one `durable` call answers all entries
            # of one.
            batch = adders.get(adder)
            if batch is None:
                adders[adder] = adder.ledger_id, first, bodies
                if first == 0 and adder.name is not None:
                    names.append((adder.ledger_id, adder.name))
            else:
                batch[2].extend(bodies)
            bytes_left -= sum(map(len, bodies))
            entries_left -= len(bodies)
        self._entries_taken += self._entries_max - entries_left
        try:
            group = self.files.write(list(adders.values()), names, began_s - oldest_s)
        except DiskFull as error:
            refused = [body for _, _, bodies in adders.values() for body in bodies]
            record_bytes = sum(map(len, refused)) + len(refused) * RECORD_PREFIX_BYTES
            # Before it is reported: the loop resets this.
            self._is_refusing = True
            self._done.append(_Refused(error, list(adders), record_bytes))
            return
        except StorageError as error:
            # Before it is reported: `run`'s clean-up must not try the same disk again.
            self._broken = True
            self._done.append(error)
            raise
        except BaseException:
            # Out of memory, or a bug: these entries are not written. A later group of the same ledgers would
            # be taken for them, and confirm what is not stored.
            self._broken = True
            raise
        last = [(adder, first + len(bodies) - 1) for adder, (_, first, bodies) in adders.items()]
        self._done.append((group, last))

    def _deliver(self) -> None:
        """On the loop: report every durable group, in order."""
        done = self._done
        while done:
            outcome = done.popleft()
            if isinstance(outcome, StorageError):
                self._on_failed(outcome)
            elif isinstance(outcome, _Refused):
                self._refuse(outcome)
            else:
                group, last = outcome
                self.queued_bytes -= group.record_bytes
                self._on_group(group, last)

    def _refuse(self, refused: _Refused) -> None:
        """On the loop, while the thread waits: refuse all entries that are queued. Those of one adder have
        consecutive ids, so none of them can be written without the ones before it.
        """
        adders = dict.fromkeys(refused.adders)
        self.queued_bytes -= refused.record_bytes
        while self._queue:
            adder, _, bodies = self._queue.popleft()
            adders[adder] = None
            self.queued_bytes -= sum(map(len, bodies)) + len(bodies) * RECORD_PREFIX_BYTES
            self._entries_taken += len(bodies)
        # First: adders that are told may add entries, which have right ids, or are refused by the bookie.
        self._on_full(refused.error)
        for adder in adders:
            adder.refused(refused.error)
        self._is_refusing = False
        self._wake_thread()
