"""A delayed index in a topic's life: fed, sealed, merged, delivered, taken over from an earlier life."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from geminga.clock import VirtualClock
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.position import Position
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore, CursorOwner, TopicOwner
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.merge_task import merged_above
from geminga.tracker.buckets.recovery import Recovery, unacknowledged
from geminga.tracker.buckets.tasks import run_buckets
from geminga.tracker.format.rows import position_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.index import IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from simulation.bookie.sim_ledger import promise
from simulation.topic.truth import due_ms

if TYPE_CHECKING:
    from simulation.topic.world import TopicWorld

SETTINGS = BucketSettings(indexes_min=4, segment_span_ms=40, segment_indexes_max=4, buckets_max=2)
PAUSE_S = 0.05
LOOKS_MAX = 20
PATIENCE_S = 100.0
"""Virtual seconds after which what cannot be written will not be."""


class TopicDelay:
    """The index of one subscription, or (`is_shared`) the topic's with this subscription alone."""

    def __init__(self, world: TopicWorld, ledger: ManagedLedger, cursor: Cursor, *, is_shared: bool) -> None:
        self._world = world
        self._ledger = ledger
        self._cursor = cursor
        self._due_when_read: list[Position] = []
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.owner = TopicOwner(ledger) if is_shared else CursorOwner(cursor)
        self.buckets = Buckets(
            BucketStore(ledger.storage),
            self.owner,
            world.clock,
            IndexSettings(strict=True, exact=True, indexes_min=SETTINGS.indexes_min),
            SETTINGS,
            off_loop=_at_once,
        )
        self.index = self.buckets.index
        self.view = View(self.index, reread=lambda first, last: None)
        self._note_what_is_sealed()
        world.tracked = self.tracked

    def _note_what_is_sealed(self) -> None:
        told = self.index.sealed

        def sealed(frozen: Frozen, bucket: StoredBucket) -> None:
            self._world.truth.sealed |= {Position(*position_of(code)) for code in frozen.rows.codes.tolist()}
            told(frozen, bucket)

        self.index.sealed = sealed  # type: ignore[method-assign]

    def tracked(self) -> set[tuple[int, int]]:
        bitmaps = self.index.members.bitmaps
        return {Position(ledger_id, entry_id) for ledger_id, ids in bitmaps.items() for entry_id in ids}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            with self._scope:
                await run_buckets(self.buckets, task_status=task_status)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Write nothing any more."""
        self._scope.cancel()
        await self._ended.wait()

    async def clear(self) -> None:
        """The cursor has moved past everything."""
        self._world.truth.sealed.clear()
        self._due_when_read.clear()
        self.index.clear()
        await self.buckets.clear()

    async def recover(self) -> None:
        """Take over the buckets that are named; what they do not have is fed from the backlog again."""
        recovery = Recovery(
            self.buckets,
            wanted=lambda members: unacknowledged((self._cursor,), members),
            on_known=lambda first, last: None,
        )
        await recovery.run()
        truth, found = self._world.truth, self.tracked()
        waiting = self._waiting()
        promise(found <= waiting, "the index has what is acknowledged, or was never there")
        # A bucket that cannot be read is given up, and its messages looked up in the backlog.
        lost = set() if self._world.read_failed() else (truth.sealed & waiting) - found
        promise(not lost, f"{sorted(lost)[:3]} were in a durable bucket and are not in the index")
        self._feed(waiting - found)

    def _waiting(self) -> set[Position]:
        """What is in the topic and not acknowledged."""
        receipts, cursor, entries_in = self._world.truth.receipts, self._cursor, self._ledger.entries_in
        return {
            place
            for place in receipts
            if place.entry_id < entries_in(place.ledger_id) and not cursor.is_acknowledged(place)
        }

    def _feed(self, places: set[Position]) -> None:
        for place in sorted(places):
            if not self.view.add(place, due_ms(self._world.truth.receipts[place])):
                self._due_when_read.append(place)

    async def seal(self, places: list[Position]) -> None:
        """Index these, and wait until they are a bucket, and merged as far as they have to be."""
        self._feed(set(places))
        self.index.feed.freeze_all()
        await self.settled()

    async def settled(self) -> None:
        """Nothing is left to do but what is due later."""
        with trio.fail_after(PATIENCE_S):
            await trio.testing.wait_all_tasks_blocked()
            while self._is_busy():
                await trio.sleep(PAUSE_S)  # virtual: something is tried again then
                await trio.testing.wait_all_tasks_blocked()

    def _is_busy(self) -> bool:
        if self._ledger.error is not None:
            raise self._ledger.error  # a broker would open the topic anew
        buckets = self.buckets
        return (
            len(buckets.frozen) > 0
            or buckets.dying > 0
            or len(buckets.stored) > merged_above(SETTINGS)
            or any(self.index.wanted(self._world.clock.ms))
        )

    async def gives_what_is_due(self, clock: VirtualClock) -> bool:
        """Whether some of it can be taken without time going on, if there is any. The rest is loaded as it is
        taken.
        """
        now_ms, receipts = clock.now_ms(), self._world.truth.receipts
        if not any(due_ms(receipts[Position(*place)]) <= now_ms for place in self.tracked()):
            return True
        # Segments of nothing but acknowledged entries are used up by the look at them.
        for _ in range(LOOKS_MAX):
            if self.view.has_due():
                return True
            await clock.quiet()
        return False

    async def take_due(self) -> list[Position]:
        """All that is due now, in order; it is for the caller to acknowledge it."""
        # After a jump the index has been woken by its alarm; where time just goes on, by what a broker's
        # dispatcher does at the due time.
        if not self._world.clock.is_virtual:
            self.buckets.poke()
        taken, self._due_when_read = self._due_when_read, []
        with trio.fail_after(PATIENCE_S):
            while True:
                some = [Position(code >> 32, code & 0xFFFFFFFF) for code in self.view.take_due(100)]
                if not some:
                    if not any(self.index.wanted(self._world.clock.ms)):
                        return taken
                    await trio.sleep(PAUSE_S)
                taken += some
                self._check_due(some)

    def _check_due(self, taken: list[Position]) -> None:
        now_ms = self._world.clock.ms
        early = [place for place in taken if due_ms(self._world.truth.receipts[place]) > now_ms]
        promise(not early, f"{early[:3]} are given out before they are due")


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Instead of a thread, so that the order is always the same."""
    await trio.lowlevel.checkpoint()
    return function(*args)
