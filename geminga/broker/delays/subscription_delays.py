"""What a subscription holds back for later: its index of delayed entries, and the parts of the backlog that
have to be looked at once more because the index has lost, or does not know yet, what it held of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio
from pyroaring import BitMap

from geminga.broker.delays.given_out import GivenOut
from geminga.broker.delays.ledger_ranges import LedgerRange, LedgerRanges
from geminga.broker.delays.settings import DelayPolicy
from geminga.broker.delays.window import WINDOW_ENTRIES, Window
from geminga.events.recording import Record
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import EARLIEST, Position

if TYPE_CHECKING:
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.tracker.buckets.buckets import Buckets
    from geminga.tracker.buckets.unknown import UnknownLedgers
    from geminga.tracker.index.view import View

NO_OVERRIDES: Mapping[int, int] = {}
EARLY_MAX = 1000
"""Entries, or a read more, that are kept while a tracker is being opened; those beyond are read again."""

_entry_id = attrgetter("position.entry_id")


class OpenedIndex(NamedTuple):
    view: View
    buckets: Buckets | None
    """The index itself, with what it has on the bookie; None: the view is all there is."""


class IndexDoor(Protocol):
    """Where a subscription finds its index: its own, or the one that all subscriptions of a topic share."""

    @property
    def policy(self) -> DelayPolicy: ...

    @property
    def shared(self) -> Buckets | None:
        """The index that all share, once it is open."""
        ...

    @property
    def record(self) -> Record:
        """Tells an event."""
        ...

    @property
    def fed_from(self) -> Position:
        """From here on the shared index hears by itself of what is published; LATEST: it does not."""
        ...

    @property
    def held(self) -> tuple[Position, Position]:
        """First and last of the entries that the shared index was told of last, if all of them wait in it."""
        ...

    def has_index(self, cursor: Cursor) -> bool:
        """Whether there is an index already that `open` would look at."""
        ...

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run this beside the dispatcher. False: there is nothing to run it in."""
        ...

    async def open(self, delays: SubscriptionDelays) -> OpenedIndex: ...


class SubscriptionDelays:
    """Its tracker is opened with the first entry that has to wait, and stays when consumers come and go.

    An entry is held back exactly while the tracker contains it; reads leave those out, so that an entry is
    read once to learn its time and once more when it is due.
    """

    __slots__ = (
        "_again",
        "_early",
        "_is_closed",
        "_ledger",
        "_left_out",
        "_opening",
        "clears",
        "cursor",
        "door",
        "given_out",
        "is_opening",
        "overrides",
        "own",
        "policy",
        "read_until",
        "tracker",
        "wake",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: Cursor,
        door: IndexDoor,
        given_out: GivenOut,
        wake: Callable[[], None],
    ) -> None:
        """`given_out`: which entries are with a consumer or to be sent again. `wake` has the subscription's
        dispatcher run soon.
        """
        self._ledger = ledger
        self.cursor = cursor
        self.door = door
        self.given_out = given_out
        self.wake = wake
        self.policy = door.policy
        self.tracker: View | None = None
        self.own: Buckets | None = None
        """Its index with what that has on the bookie, where it is this subscription's own, and open."""
        # Made with their first use: most topics are idle, and have thousands of neighbours.
        self._opening: trio.Lock | None = None
        self._again: LedgerRanges | None = None
        """What the index has lost, or has passed over."""
        self._left_out: LedgerRanges | None = None
        """To be read again when the index is not full any more."""
        self._early: list[Entry] | None = None
        """Read while the tracker was being opened, and to be held back."""
        self._is_closed = False
        self.is_opening = False
        """Whether `open` is running beside the dispatcher."""
        self.clears = 0
        """How often `clear` was called."""
        self.overrides: Mapping[int, int] = NO_OVERRIDES
        """Other due times than the entries say, by ledger id << 32 | entry id."""
        self.read_until = EARLIEST
        """Up to here the backlog was read when the last consumer left, or for the index alone."""

    # -- what it is ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.tracker) if self.tracker is not None else 0

    def overdue(self) -> int:
        """About how many of them are due by now and not sent yet; for statistics."""
        if self.tracker is None or not len(self.tracker):
            return 0
        from geminga.tracker.index import eyes

        return eyes.overdue(self.tracker)

    def unread_entries(self) -> int:
        """While no consumer reads: at most so many entries of the backlog may be delayed, without the index
        knowing of them.
        """
        cursor, ledger = self.cursor, self._ledger
        until = ledger.last_confirmed
        if self.tracker is not None and self.door.fed_from < until:
            fed_from = self.door.fed_from
            until = Position(fed_from.ledger_id, fed_from.entry_id - 1)
        unread = ledger.count_between(max(self.read_until, cursor.mark_delete), until)
        return min(unread, max(cursor.backlog_entries() - len(self), 0))

    def memory_bytes(self) -> int:
        return self.tracker.memory_bytes() if self.tracker is not None else 0

    def has_index(self) -> bool:
        """Whether there is an index already that `open` would look at."""
        return self.door.has_index(self.cursor)

    @property
    def buckets(self) -> Buckets | None:
        """The index that it looks at, or would if it held anything back."""
        return self.own if self.own is not None else self.door.shared

    @property
    def unknown(self) -> UnknownLedgers | None:
        """While an index that was found at a start is being read: the ledgers of which it may yet say when
        their entries are due. `read_again` is called for each range of them when that is settled.
        """
        buckets = self.buckets
        return None if buckets is None or buckets.is_recovered else buckets.unknown

    def set_policy(self, policy: DelayPolicy) -> None:
        """In force from the next entry that is read, or falls due, on."""
        self.policy = policy
        if self.tracker is not None:
            self._apply_tick()
            self.wake()

    def _apply_tick(self) -> None:
        if self.policy.tick_ms is not None and self.tracker is not None:
            self.tracker.set_tick(self.policy.tick_ms)

    # -- life ------------------------------------------------------------------------------------------------

    def _opening_lock(self) -> trio.Lock:
        if self._opening is None:
            self._opening = trio.Lock()
        return self._opening

    async def open(self) -> View:
        """The tracker, opened if it is not there yet. Cancelling leaves it closed."""
        async with self._opening_lock():
            if self.tracker is None:
                opened = await self.door.open(self)
                self.tracker = opened.view
                if opened.buckets is not None:
                    # A shared one belongs to the topic: this subscription's end must not close it.
                    if opened.buckets is not self.door.shared:
                        self.own = opened.buckets
                    if opened.buckets.overrides is not None:
                        self.overrides = opened.buckets.overrides.times_ms
                self._apply_tick()
            return self.tracker

    def open_beside(self, entries: Sequence[Entry]) -> bool:
        """Open the tracker while undelayed entries go on, and hold these back then. False: it cannot be done
        so.
        """
        if not self.is_opening:
            # The import of numpy takes a tenth of a second, and undelayed messages do not wait for it.
            if not self.door.start_soon(self._open_beside):
                return False
            self.is_opening = True
        if self._early is None:
            self._early = []
        if len(self._early) < EARLY_MAX:
            # Without their bodies, which may be of any size.
            self._early += [Entry(entry.position, b"", entry.peek) for entry in entries]
        else:
            self.read_again(entries[0].position.ledger_id, entries[-1].position.ledger_id)
        return True

    async def _open_beside(self) -> None:
        try:
            # A subscription that was closed meanwhile would open an index that no call closes any more.
            if not self._is_closed:
                await self.open()
        finally:
            self.is_opening = False
        early, self._early = self._early or [], None
        early = [entry for entry in early if not self.cursor.is_acknowledged(entry.position)]
        if self.tracker is not None and early:
            held = self.hold_back(early)
            # Fell due, or found no room, while the index was opened: the dispatcher left them out and is past
            # them.
            for ledger_id in {e.position.ledger_id for e in early if e.position not in held}:
                self.read_again(ledger_id, ledger_id)
            if self._again:
                self.leap()
        self.wake()

    async def clear(self) -> None:
        """Nothing is held back any more, and nothing to be read again: the cursor has moved. Of an index of
        its own, no property names anything on return.
        """
        # Ranges to be read again speak of where the cursor stood before.
        self.all_again()
        self.read_until = EARLIEST
        self.clears += 1
        if self.tracker is not None:
            self.tracker.clear()
        if self.own is not None:
            await self.own.clear()

    async def close(self) -> None:
        """Release memory; what is durable stays. Nothing is opened any more."""
        self._is_closed = True
        # An opening that is under way would set `tracker` after this has closed it.
        async with self._opening_lock():
            self.all_again()
            if self.own is not None:
                await self.own.stop()
            if self.tracker is not None:
                self.tracker.close()
                self.tracker = None

    # -- entries ---------------------------------------------------------------------------------------------

    def hold_back(self, entries: Sequence[Entry]) -> set[Position]:
        """Which of these entries, all with a delivery time, are to wait: those are in the index now, or are
        read again when it has room for them.

        The tracker must be open.
        """
        tracker, buckets = self.tracker, self.buckets
        assert tracker is not None
        if buckets is not None and buckets.losses:
            buckets.losses.count_read_again(
                [entry.position.ledger_id << 32 | entry.position.entry_id for entry in entries]
            )
        held: set[Position] = set()
        if not self.policy.active:
            return held
        start = 0
        while start < len(entries):
            ledger_id = entries[start].position.ledger_id
            stop = start + 1
            while stop < len(entries) and entries[stop].position.ledger_id == ledger_id:
                stop += 1
            part = entries[start:stop]
            times = [entry.peek.deliver_at_ms for entry in part]
            # Or a message that an operator postponed would fall due by its own time after its bucket was
            # lost.
            if self.overrides:
                changed = self.overrides.get
                codes = [entry.position.ledger_id << 32 | entry.position.entry_id for entry in part]
                times = [changed(code, at_ms) for code, at_ms in zip(codes, times, strict=True)]
            # Memory had no bound while buckets could not be written: what it cannot take stays in the
            # backlog.
            if tracker.is_full():
                refused = tracker.refused(times)
                if len(refused) < len(part):
                    if self._left_out is None:
                        self._left_out = LedgerRanges()
                    self._left_out.add(ledger_id, ledger_id)
            else:
                refused = tracker.add_many(ledger_id, list(map(_entry_id, part)), times)
            held.update(entry.position for entry in part)
            held.difference_update(part[place].position for place in refused)
            start = stop
        return held

    def keep_timed(self, entries: Sequence[Entry]) -> None:
        """As `hold_back`, for no consumer: those that are due wait in the index for the first one."""
        held = self.hold_back(entries)
        if self.policy.active and self.tracker is not None:
            for entry in entries:
                if entry.position not in held:
                    self.tracker.add_due(entry.position, self.due_ms(entry))

    @property
    def is_complete(self) -> bool:
        """Whether the tracker contains all that was read and has to wait: nothing was left out for want of
        room, passed over, or lost.
        """
        return not (self.is_opening or self._again or self._early or self._left_out)

    @property
    def lost_ranges(self) -> Sequence[LedgerRange]:
        """What is to be read again: in order, the first one perhaps read in part."""
        return self._again.ranges if self._again else ()

    @property
    def left_out_ranges(self) -> Sequence[LedgerRange]:
        """What is to be read again when the index has room."""
        return self._left_out.ranges if self._left_out else ()

    @property
    def is_behind(self) -> bool:
        """Whether `reached_end` has something to do once nothing is left to read."""
        return self.tracker is not None and self.tracker.is_behind

    def due_ms(self, entry: Entry) -> int:
        """When an entry is due, 0 if it has no time: as it was sent, or as it was changed. Its metadata must
        be at hand.
        """
        code = entry.position.ledger_id << 32 | entry.position.entry_id
        at_ms: int = entry.peek.deliver_at_ms
        return self.overrides.get(code, at_ms)

    def has_due(self) -> bool:
        return self.tracker is not None and self.tracker.has_due()

    def awaits_due(self) -> bool:
        """Whether something is due that has to be loaded first."""
        return self.tracker is not None and self.tracker.awaits_due()

    def holds(self, position: tuple[int, int]) -> bool:
        return self.tracker is not None and self.tracker.contains(position)

    def is_settled(self, position: tuple[int, int]) -> bool:
        """Whether this subscription has delivered an entry, perhaps without an answer yet."""
        # Pending counts as delivered: otherwise a shared index would keep for this view what its consumer
        # has.
        return self.cursor.is_acknowledged(position) or self.given_out.has(*position)

    def saw_undelayed(self, position: Position) -> None:
        """An entry without a delivery time came by, so not all of them have the same delay."""
        if self.tracker is not None:
            self.tracker.saw_undelayed(position)

    def passed(self, positions: Sequence[tuple[int, int]]) -> None:
        """These were acknowledged without having been delivered."""
        if self.tracker is not None and len(self.tracker):
            self.tracker.pass_positions(positions)

    def mark_delete_moved(self, position: Position) -> None:
        """Everything up to here was acknowledged, but not by a consumer (TTL, skip, quota)."""
        if self.tracker is not None:
            self.tracker.mark_delete_moved(position)

    # -- the backlog without what is held back ---------------------------------------------------------------

    def window(self, start: Position, stop: Position | None = None, *, skips: bool = True) -> Window | None:
        """The part of the backlog that is next from `start` on and before `stop`: in one ledger, and at most
        `WINDOW_ENTRIES` long. None: there is nothing left.

        Of a ledger that is `unknown` nothing is free: it is passed over, and read once it is
        known; or, if not `skips`, nothing comes before it is known.
        """
        cursor, ledger = self.cursor, self._ledger
        place = cursor.next_unacknowledged(start)
        ledger_id, first = place
        end = min(first + WINDOW_ENTRIES, ledger.entries_in(ledger_id))
        if stop is not None and ledger_id >= stop.ledger_id:
            end = min(end, stop.entry_id) if ledger_id == stop.ledger_id else 0
        if first >= end:
            return None
        if (unknown := self.unknown) is not None and unknown.has(ledger_id):
            return (
                Window(place, BitMap(), Position(ledger_id, ledger.entries_in(ledger_id))) if skips else None
            )
        held = self.tracker.tracked(ledger_id, first, end - 1) if self.tracker is not None else None
        if held is None:
            return Window(place, None, Position(ledger_id, end))
        free = BitMap(range(first, end))
        free -= held
        acknowledged = cursor.acknowledged_in(ledger_id, first, end)
        if acknowledged is not None:
            free -= acknowledged
        return Window(place, free, Position(ledger_id, end))

    def read_again(self, first_ledger: int, last_ledger: int) -> None:
        """What the index held of these ledgers is lost: have them read again, as far as they were read."""
        if self._again is None:
            self._again = LedgerRanges()
        self._again.add(first_ledger, last_ledger)
        self.wake()

    def has_gaps(self) -> bool:
        """Whether reads have to look at the index: something is held back, or it is not known yet what."""
        return len(self) > 0 or self.unknown is not None

    def next_again(self, read_position: Position) -> Window | None:
        """The next part of what is to be read again; None: nothing is, any more.

        To be told how far it was read by `again_up_to`.
        """
        # Whole ledgers, as nothing notes which of their messages found no room.
        if self._left_out and not (self.tracker is not None and self.tracker.is_full()):
            for part in self._left_out.take_all():
                self.read_again(*part)
        while self._again and (found := self._again.next_start()) is not None:
            start, last_ledger = found
            window = self.window(start, min(read_position, Position(last_ledger + 1, 0)))
            if window is not None:
                return window
            self._again.drop_first()
            if not self._again:
                self._record("caught-up")
        return None

    def leap(self) -> None:
        """The dispatcher goes on from the read position, and reads what lies before it beside that."""
        if self.tracker is not None:
            self.tracker.leap(self.cursor.read_position)

    def reached_end(self) -> None:
        """If nothing is left to read, new or again, the index has all that it will get of the backlog, and
        seals it.
        """
        tracker = self.tracker
        if tracker is None or not tracker.is_behind or not self.is_complete:
            return
        # Seen from here alone: another subscription may still be reading a backlog, and `caught_up` asks for
        # that.
        if self.cursor.is_at_end():
            tracker.caught_up()

    def was_read(self, until: Position) -> None:
        """The index knows of all that is delayed up to here."""
        self.read_until = max(self.read_until, until)

    def stopped_reading(self) -> None:
        """The last consumer has left: other subscriptions do not wait for the rest of the backlog."""
        self.was_read(self._ledger.previous_position(self.cursor.read_position))
        if self.tracker is not None:
            self.tracker.stopped_reading()

    def again_up_to(self, position: Position) -> None:
        """What `next_again` returned was read up to here. If more was lost since, all of it is still to be
        read.
        """
        if self._again is not None:
            self._again.read_up_to(position)
            self._record("reading-again", ledger=position.ledger_id, entry=position.entry_id)

    def _record(self, kind: str, **at: int) -> None:
        counts = {**at, "messages": 0 if self.buckets is None else self.buckets.losses.read_again}
        self.door.record(kind, topic=self._ledger.name, subscription=self.cursor.name, counts=counts)

    def all_again(self) -> None:
        """The whole backlog is about to be read: nothing is to be read once more."""
        self._again = self._left_out = self._early = None
