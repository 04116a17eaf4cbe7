"""The writing end of a managed ledger: appends and confirmations of runs of entries.

No method waits. When a ledger is full, the state becomes `ROLLING` until its last confirmations arrive. Then
the owner of the appender is woken to make the next ledger durable and pass it to `open_ledger`; entries
queue meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import trio

from geminga.errors import GemingaError, ReadOnly, ServiceNotReady, StorageError, TopicTerminated
from geminga.managed_ledger.chain.add_listener import AddListener, NoListener
from geminga.managed_ledger.chain.entry import Entry, Parsed
from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings, is_full
from geminga.managed_ledger.chain.state import ALLOWED, QUEUEING, State
from geminga.managed_ledger.chain.tail_cache import TailCache, TailRun
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.bookie.running.ledger_writer import LedgerWriter
    from geminga.clock import Clock

log = logging.getLogger("geminga.managed_ledger")

# Asking after each entry would cost a clock call for each message of a topic whose ledger is full but young.
ROLL_CHECK_ENTRIES = 64
"""A full ledger that is too young is checked again after this many entries (and at each confirmation)."""


def _nothing() -> None:
    pass


def _kept(bodies: list[bytes], parsed: Sequence[Parsed | None] | None) -> list[bytes | Parsed | Entry]:
    """The slots of a run's entries in the tail cache: a list of the cache's own."""
    if parsed is None:
        return list(bodies)
    return [body if peek is None else peek for body, peek in zip(bodies, parsed, strict=True)]


class Appender:
    """State, open ledger and unconfirmed entries of one managed ledger."""

    __slots__ = (
        "_chain",
        "_clock",
        "_closed_bytes",
        "_drained",
        "_first_needed",
        "_newest_writer",
        "_on_fenced",
        "_pending",
        "_queue",
        "_roll_check_entry_id",
        "_room",
        "_run",
        "_tail_cache",
        "_wake",
        "_warned_of_length",
        "_writer",
        "caching",
        "entries_added",
        "error",
        "fenced",
        "full",
        "last_confirmed",
        "ledger_bytes",
        "ledger_created_ms",
        "listener",
        "name",
        "settings",
        "state",
        "unconfirmed",
    )

    def __init__(
        self,
        name: str,
        chain: LedgerChain,
        tail_cache: TailCache,
        clock: Clock,
        settings: ManagedLedgerSettings,
        *,
        wake: Callable[[], None],
        first_needed: Callable[[int], int],
    ) -> None:
        """`wake` is called when there may be work for the owner; for `first_needed` see
        `TailCache.open_run`.
        """
        self.name = name
        self.settings = settings
        self.listener: AddListener = NoListener()
        self.state = State.OPENING
        self.last_confirmed = Position(-1, -1)
        self.caching = False
        """Whether there are cursors that read: without them the tail cache keeps nothing."""
        self.entries_added = 0
        self.ledger_created_ms = 0
        self.ledger_bytes = 0
        """Bytes appended to the open ledger."""
        self.error: GemingaError | None = None
        """The reason for a fence or the end."""
        self.fenced = False
        self.full: ReadOnly | None = None
        """Why the next ledger has to wait: the records of a new one do not fit on the disk."""
        self._on_fenced: Callable[[], None] = _nothing
        self._first_needed = first_needed
        self._closed_bytes = 0
        """Bytes appended to earlier ledgers since this one was opened."""
        self._chain = chain
        self._tail_cache = tail_cache
        self._clock = clock
        self._room = tail_cache.append_room
        self._wake = wake
        self._writer: LedgerWriter | None = None
        # Kept after the ledger is left: `settled` must wait for entries that its journal still has, or a new
        # opening could count the ledger's entries before the last ones are there.
        self._newest_writer: LedgerWriter | None = None
        self._warned_of_length = False
        self._pending: list[tuple[Any, int]] = []
        """Contexts of runs that the bookie has and has not confirmed, in order, with their entries."""
        self.unconfirmed = 0
        """Entries that the bookie has and has not confirmed."""
        self._queue: list[tuple[list[bytes], Any, Sequence[Parsed | None] | None]] = []
        """Runs that wait for the next ledger: bodies, context, parsed metadata."""
        self._run: TailRun | None = None
        self._roll_check_entry_id = 0
        self._drained: trio.Event | None = None
        """Set only while a task waits, because an idle topic should cost little."""

    def become(self, state: State) -> None:
        """Change to another state, if the table allows it."""
        assert state in ALLOWED[self.state], f"{self.name}: {self.state.name} -> {state.name}"
        self.state = state

    def attach(self, listener: AddListener, on_fenced: Callable[[], None] | None = None) -> None:
        """From now on `listener` gets the results of appends, and `on_fenced` is called if this appender is
        fenced. A managed ledger has one listener, and needs it before the first entry.
        """
        self.listener = listener
        self._on_fenced = on_fenced or _nothing

    def apply(self, settings: ManagedLedgerSettings) -> None:
        """Use these rollover settings from the next confirmation on."""
        self.settings = settings

    def recovered_terminated(self, last: Position) -> None:
        """The topic was terminated before this opening, and ends at this position."""
        self.become(State.TERMINATED)
        self.last_confirmed = last

    @property
    def bytes_added(self) -> int:
        """Bytes passed to the bookie since the managed ledger was opened."""
        return self._closed_bytes + self.ledger_bytes

    @property
    def pending_adds(self) -> int:
        """Entries that are accepted and not confirmed, including queued ones."""
        return self.unconfirmed + sum(len(bodies) for bodies, _, _ in self._queue)

    def oldest_pending(self) -> Any:
        """The context of the run that has waited longest for its confirmation; None if none waits."""
        if self._pending:
            return self._pending[0][0]
        return self._queue[0][1] if self._queue else None

    def pending(self) -> Iterator[Any]:
        """The contexts of all waiting runs, the oldest first."""
        for context, _ in self._pending:
            yield context
        for _, context, _ in self._queue:
            yield context

    # -- down -------------------------------------------------------------------------------------------

    def run_entries_max(self) -> int:
        """How many entries may be appended together now; at least 1. A longer run would pass the end of a
        ledger.
        """
        writer = self._writer
        if writer is None:
            return 1
        # Beyond the limit the ledger is full and too young: it ends some time after a check, at no certain
        # entry.
        left = self.settings.ledger_entries_max - writer.next_entry_id
        return left if left > 0 else ROLL_CHECK_ENTRIES

    def append(
        self, bodies: list[bytes], context: Any, parsed: Sequence[Parsed | None] | None = None
    ) -> None:
        """Accept entries, at least one and at most `run_entries_max()`. The listener gets `context` back,
        once: confirmed when all of them are durable, or failed. `parsed` is what readers at the tail find in
        `Entry.peek`. Synchronous; entries keep their order, even across ledgers. The lists may not be changed
        afterwards.

        Raises TopicTerminated, ServiceNotReady (closing) or StorageError; then no entry was accepted and the
        context is not given back. Never waits, and never refuses an entry for lack of memory: the readers of
        publishers' sockets prevent that.
        """
        writer = self._writer
        if writer is None:
            self._append_later(bodies, context, parsed)
            return
        keep = self._run
        try:
            # Before the append, after which the list is the journal's.
            kept = None if keep is None else _kept(bodies, parsed)
            count, size_bytes = len(bodies), sum(map(len, bodies))
            first = writer.append_run(bodies)
        # Fencing here would close every topic on a full disk, where readers and acknowledgements must go on.
        except ReadOnly:
            raise  # it passes, and nothing that was accepted is affected
        except StorageError as error:
            self.fence(error)
            raise
        # After the append: had it raised, the context would never be confirmed, and every later confirmation
        # would be given to the entry before its own.
        self._pending.append((context, count))
        self.unconfirmed += count
        self.ledger_bytes += size_bytes
        if keep is not None and kept is not None:
            keep.waiting.append((first + count, kept, size_bytes))
        # Compared by entry id, so that the usual run pays one comparison for all three rules of rollover. A
        # ledger that is full by size is found at its confirmation.
        if first + count > self._roll_check_entry_id:
            self.roll_if_full(first + count)

    def _append_later(
        self, bodies: list[bytes], context: Any, parsed: Sequence[Parsed | None] | None
    ) -> None:
        state = self.state
        if self.full is not None:
            raise ReadOnly(str(self.full))
        if state in QUEUEING:
            # Counted, not refused: the bytes have been read from the socket. The publisher's connection is
            # what waits.
            self._room.take(sum(map(len, bodies)))
            self._queue.append((bodies, context, parsed))
        elif state is State.TERMINATED:
            raise TopicTerminated(f"{self.name} was already terminated")
        else:
            self.check_open()
            raise AssertionError(f"{self.name}: {state.name} without a writer")

    @property
    def is_alive(self) -> bool:
        return self.state not in {State.FENCED, State.CLOSED}

    def check_open(self) -> None:
        """Raise ServiceNotReady if closing, closed or fenced; StorageError if the storage caused
        the fence.
        """
        state = self.state
        if state is State.FENCED:
            raise self._fenced_error()
        if state in {State.CLOSING, State.CLOSED}:
            raise ServiceNotReady(f"{self.name} is {state.value.lower()}")

    def _fenced_error(self) -> GemingaError:
        kind = StorageError if isinstance(self.error, StorageError) else ServiceNotReady
        return kind(f"{self.name} is fenced: {self.error}")

    # -- up ---------------------------------------------------------------------------------------------

    def _on_durable(self, last_entry_id: int) -> None:
        # A late confirmation after a fence. The publisher was told that the entry failed; to confirm it now
        # as well would put a duplicate where deduplication has already let a second try pass.
        if self.error is not None:
            return
        chain = self._chain
        ledger_id = chain.ids[-1]
        first = chain.counts[ledger_id]
        count = last_entry_id + 1 - first
        assert 0 < count <= self.unconfirmed, f"{ledger_id}:{last_entry_id} confirmed, {first} was expected"
        contexts = self._take_pending(count)
        # Chain and last confirmed first: the listener wakes subscriptions, which read up to there at once.
        chain.confirm(last_entry_id + 1)
        self.last_confirmed = Position(ledger_id, last_entry_id)
        self.entries_added += count
        if self._run is not None:
            self._tail_cache.confirm(self._run, last_entry_id)
        self.listener.on_confirmed(ledger_id, first, contexts)
        if self.state is State.OPEN:
            self.roll_if_full(last_entry_id + 1)
        elif not self._pending:
            self._wake_drained()
            self._wake()

    def _take_pending(self, count: int) -> list[Any]:
        """Remove the runs that have the first `count` unconfirmed entries; returns their contexts."""
        pending = self._pending
        # The usual case: one group confirms all that is pending.
        if count == self.unconfirmed:
            self._pending = []
            self.unconfirmed = 0
            return [context for context, _ in pending]
        runs = left = 0
        while left < count:
            left += pending[runs][1]
            runs += 1
        assert left == count, f"{self.name}: a part of a run was confirmed"
        contexts = [context for context, _ in pending[:runs]]
        del pending[:runs]
        self.unconfirmed -= count
        return contexts

    def _wake_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    def _on_failed(self, error: StorageError) -> None:
        if not isinstance(error, ReadOnly):
            self.fence(error)
            return
        # None: they were failed when it was closed or fenced.
        if not self._pending:
            return
        confirmed = self._chain.counts[self._chain.ids[-1]]
        self.ledger_bytes = self.ledger_bytes * confirmed // (confirmed + self.unconfirmed)
        self._fail_pending(error)
        # Those behind them too, or a producer's entries would be stored in another order than it sent them.
        self.fail_queue(error)
        self._wake_drained()
        self._wake()

    def fence(self, error: GemingaError) -> None:
        """The storage failed, or the records have other content than this process wrote: accept and confirm
        nothing more, and fail every waiting entry. Affects only this managed ledger, which can be closed and
        opened again.
        """
        if not self.is_alive:
            return
        log.error(
            "%s is FENCED and takes nothing until it is loaded again: %s: %s",
            self.name,
            type(error).__name__,
            error,
            # A failed disk needs no traceback, its text names the file. Anything else may be a bug of ours.
            exc_info=None if isinstance(error, StorageError) else error,
        )
        self.become(State.FENCED)
        self._stop(error)
        self.fenced = True
        self._on_fenced()

    def _stop(self, error: GemingaError) -> None:
        self.error = error
        self.refuse()
        # Before the lists are emptied by anything else: a context that is neither confirmed nor failed leaves
        # its publisher waiting until its own timeout.
        self._fail_pending(error)
        self.fail_queue(error)
        self._wake_drained()
        self._wake()

    def _fail_pending(self, error: GemingaError) -> None:
        contexts = self._take_pending(self.unconfirmed)
        # A ledger that continues does so with the ids of these entries: the tail cache would show readers
        # what failed under the ids of what was stored.
        if self._run is not None:
            self._tail_cache.failed(self._run)
        self._fail(contexts, error)

    def _fail(self, contexts: list[Any], error: GemingaError) -> None:
        if contexts:
            self.listener.on_add_failed(error, contexts)

    def fail_queue(self, error: GemingaError) -> None:
        """Fail the queued entries, because no ledger will come for them."""
        self._fail([context for _, context, _ in self._take_queue()], error)

    def _take_queue(self) -> list[tuple[list[bytes], Any, Sequence[Parsed | None] | None]]:
        queue, self._queue = self._queue, []
        self._room.give(sum(len(body) for bodies, _, _ in queue for body in bodies))
        return queue

    # -- ledgers ----------------------------------------------------------------------------------------

    def open_ledger(self, bookie: Bookie, ledger_id: int, path: str) -> None:
        """Write to this ledger from now on. Its metadata record, which has this path of the topic, and the
        record that names it are durable.
        """
        now_ms = self._clock.now_ms()
        self.full = None
        self.become(State.OPEN)
        # Before `create_ledger`, whose first confirmation looks for the newest ledger of the chain.
        self._chain.append(ChainLedger(ledger_id, 0, 0, 0))
        if self.last_confirmed.ledger_id < 0:
            # The first ledger of this opening. Nothing is confirmed in it, and the position before its first
            # entry comes after all that was recovered.
            self.last_confirmed = self._chain.tail
        self.ledger_created_ms = now_ms
        self._closed_bytes += self.ledger_bytes
        self.ledger_bytes = 0
        self._roll_check_entry_id = self.settings.ledger_entries_max - 1
        self._run = None
        self._writer = self._newest_writer = bookie.create_ledger(
            ledger_id,
            on_durable=self._on_durable,
            on_failed=self._on_failed,
            topic=path,
            purpose="data",
        )
        # Before the queued entries go in: the tail cache holds consecutive entries only, from the first one
        # on.
        self.cache(self.caching)
        queue = self._take_queue()
        for i, (bodies, context, parsed) in enumerate(queue):
            try:
                self.append(bodies, context, parsed)
            except GemingaError as error:
                # These were accepted when they were queued: they are failed here, not by raising.
                self._fail([context for _, context, _ in queue[i:]], error)
                return

    def roll_if_full(self, entries: int) -> None:
        """Stop writing to the open ledger, which now has this many entries, if it is full by the rules."""
        settings = self.settings
        age_ms = self._clock.now_ms() - self.ledger_created_ms
        if is_full(settings, entries, self.ledger_bytes, age_ms) and self._may_grow():
            self.become(State.ROLLING)
            self.refuse()
            if not self._pending:
                self._wake()
        else:
            at_entries = settings.ledger_entries_max
            self._roll_check_entry_id = (
                at_entries if entries < at_entries else entries + ROLL_CHECK_ENTRIES
            ) - 1

    def _may_grow(self) -> bool:
        """Whether the chain's record has room for one more ledger; otherwise a full ledger stays open."""
        ledgers = len(self._chain.ids)
        # A list that outgrows its record could not be written any more, and the topic would be fenced with
        # its next ledger. Writing on costs only a longer ledger, which is trimmed later.
        if ledgers < self.settings.ledgers_max:
            self._warned_of_length = False
            return True
        if not self._warned_of_length:
            self._warned_of_length = True
            log.error(
                "%s has %d ledgers, as many as its record is to hold: the newest is written on although it "
                "is full, until old ones are trimmed",
                self.name,
                ledgers,
            )
        return False

    def refuse(self) -> None:
        """Accept no more entries into the open ledger; pending ones will still be confirmed."""
        if self._writer is not None:
            # The cache's run ends here and its entries stay: consumers at the tail have not read them yet.
            self._tail_cache.close_run(self._writer.ledger_id)
            self._writer.close()
            self._writer = None

    async def drained(self) -> None:
        """Wait until the bookie has confirmed all entries. If a fence comes first, raises its reason."""
        while self._pending and self.error is None:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()
        if self.error is not None:
            raise self._fenced_error() from self.error

    async def settled(self) -> None:
        """Wait until the bookie has finished all entries, confirmed or not, so that the next opening finds
        all entries that there will be. Cancelling changes nothing.
        """
        if self._newest_writer is not None:
            await self._newest_writer.settle()

    def close(self, error: GemingaError) -> None:
        """End: waiting entries fail with `error`, and later confirmations are ignored."""
        self.become(State.CLOSED)
        self._stop(error)

    def wait_for_space(self, full: ReadOnly) -> None:
        """The next ledger cannot be made: refuse entries until `open_ledger`. Readers go on."""
        if self.full is None:
            log.warning("%s takes no entries: its next ledger waits for space: %s", self.name, full)
        self.full = full
        if self.last_confirmed.ledger_id < 0:
            self.last_confirmed = self._chain.tail
        self.fail_queue(full)

    def ledgers_dropped(self) -> None:
        """The chain has dropped ledgers at its front, maybe with the last confirmed entry."""
        # Possible when the newest ledger is still empty: the position would name a ledger that is gone.
        if self.last_confirmed.ledger_id < self._chain.ids[0]:
            self.last_confirmed = self._chain.tail

    # -- tail cache -------------------------------------------------------------------------------------

    def cache(self, wanted: bool) -> None:
        """Keep new entries in the tail cache from now on, or stop and forget those of the open ledger."""
        self.caching = wanted
        writer = self._writer
        if writer is None:
            return
        if wanted and self._run is None:
            self._run = self._tail_cache.open_run(writer.ledger_id, self._first_needed)
        elif not wanted and self._run is not None:
            self._tail_cache.discard(writer.ledger_id)
            self._run = None
