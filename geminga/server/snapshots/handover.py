"""From one opening of a data directory to the next, within one process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import trio

from geminga.errors import StorageError
from geminga.server.snapshots import swap as swaps
from geminga.server.snapshots.swap import Intent
from geminga.storage.disk import RealDisk

if TYPE_CHECKING:
    from geminga.broker.flow.snapshot_reports import SwapReport
    from geminga.config.config import ClockKind
    from geminga.events.recording import Record
    from geminga.metadata.store import MetadataStore

log = logging.getLogger("geminga.server")

ANSWER_SECONDS: Final = 1.0
"""How long the end of the service waits until the request that asked for it is answered."""


class Swap(NamedTuple):
    """A state that is prepared, to be opened next."""

    intent: Intent
    clock: Literal["real", "virtual"]
    """The kind of clock that it has."""
    shown_ms: int | None
    """What a virtual clock shows at its opening; None for a new one."""
    next_ledger_id: int
    """Ledgers of this state are not numbered as those of the state before, which clients may know."""


class Handover:
    """Which state of the data directory is opened next, if any; ends the service for it, or for good."""

    def __init__(self, data_dir: str, passed: Callable[[str], None]) -> None:
        """`passed` gets the names of points of a restore, on any thread."""
        self._disk = RealDisk()
        self._data_dir = data_dir
        self.passed: Final = passed
        self._is_stopping = False
        self._service = trio.CancelScope()
        self.accepting = trio.CancelScope()
        """Of the tasks that accept connections in this opening."""
        self._wanted: Swap | None = None
        self._begun = trio.Event()
        self._answered = trio.Event()
        self.using_swap: Final = trio.Lock()
        """Held while the directory `swap` is filled or emptied beside a service."""
        self.opening: Swap | None = None
        """The state that is being opened, and not committed yet."""
        self._began_s = 0.0
        self.last: SwapReport | None = None

    # -- ending the service ----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop for good."""
        self._is_stopping = True
        self._service.cancel()

    def next_scope(self) -> trio.CancelScope:
        """The scope of the next service; ended already if the broker is to stop."""
        self._service, self.accepting = trio.CancelScope(), trio.CancelScope()
        self._begun, self._answered = trio.Event(), trio.Event()
        if self._is_stopping:
            self._service.cancel()
        return self._service

    @property
    def is_last(self) -> bool:
        """Whether no opening follows on this one."""
        return self._is_stopping or self._wanted is None

    @property
    def is_wanted(self) -> bool:
        """Whether this service is about to end for another state."""
        return self._wanted is not None

    def want(self, swap: Swap) -> None:
        """Open this state next. Connections wait from now on until it is open."""
        self._wanted = swap
        # Before the answer leaves: the client asks again, and this service must not accept that request.
        self.accepting.cancel()
        self._begun.set()

    def answered(self) -> None:
        """The request for the next state is answered, when the calling task waits next."""
        self._answered.set()

    async def end_when_wanted(self) -> None:
        await self._begun.wait()
        with trio.move_on_after(ANSWER_SECONDS):
            await self._answered.wait()
        self._service.cancel()

    # -- between two openings --------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Undo what an earlier process was killed in; the data directory is locked, nothing of it is open."""
        interrupted = await self._disk.run(swaps.settle, self._disk, self._data_dir)
        if interrupted is not None:
            log.warning("a %s was interrupted: the state from before it is back, whole", interrupted)
            self._report(interrupted, "undone", "it was interrupted by the end of the process")

    async def next_state(self) -> bool:
        """Whether there is one to open; it is in place then. Call it after an opening has closed."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return False
        if self._is_stopping:
            await self._disk.run(swaps.discard, self._disk, self._data_dir)
            return False
        self._began_s = trio.current_time()
        self.opening = wanted
        await self._disk.run(swaps.begin, self._disk, self._data_dir, wanted.intent, self.passed)
        return True

    async def adapt(self, metadata: MetadataStore) -> None:
        """Bring the clock and the numbers of ledgers into the metadata of a state that is being opened."""
        if self.opening is None:
            return
        # No other start needs these.
        from geminga.metadata.ledger_ids import skip_ledger_ids
        from geminga.metadata.virtual_clock_state import resume_clock

        if self.opening.shown_ms is not None:
            await resume_clock(metadata, self.opening.shown_ms)
        await skip_ledger_ids(metadata, self.opening.next_ledger_id)

    def clock_kind(self, configured: ClockKind) -> ClockKind:
        """The kind of clock for this opening: a reset keeps that of the state before."""
        return configured if self.opening is None else self.opening.clock

    async def commit(self, record: Record) -> Callable[[], Awaitable[None]]:
        """The state has opened, and no client has reached it yet: no crash undoes it from now on. Returns
        what deletes the state before it. `record` gets what has become of a restore as an event.
        """
        swap = self.opening
        if swap is None:
            if self.last is not None and self.last.outcome == "undone":
                record("restore-undone", text=self.last.reason)
            return trio.lowlevel.checkpoint
        self.passed("restore-opened")
        await self._disk.run(swaps.commit, self._disk, self._data_dir)
        self.opening = None
        self.passed("restore-committed")
        self._report(swap.intent, "done", seconds=round(trio.current_time() - self._began_s, 3))
        log.info("%s: done", swap.intent)
        record("restored", text=str(swap.intent))
        return self._delete_old

    async def _delete_old(self) -> None:
        try:
            async with self.using_swap:
                await self._disk.run(swaps.delete_old, self._disk, self._data_dir)
        except StorageError as error:
            log.warning("what a restore has left is deleted at the next start: %s", error)

    async def undo(self, reason: str) -> None:
        """The state could not be opened: the one before is put back."""
        swap = self.opening
        assert swap is not None
        await self._disk.run(swaps.undo, self._disk, self._data_dir)
        self.opening = None
        log.error("%s failed, and the state from before it is back: %s", swap.intent, reason)
        self._report(swap.intent, "undone", reason)

    def _report(
        self, intent: Intent, outcome: Literal["done", "undone"], reason: str = "", seconds: float = 0.0
    ) -> None:
        from geminga.broker.flow.snapshot_reports import SwapReport

        self.last = SwapReport(
            what=intent.what, source=intent.source, outcome=outcome, reason=reason, seconds=seconds
        )
