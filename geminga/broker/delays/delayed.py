"""What a subscription holds back for later: its index of delayed entries, and the parts of the backlog that
have to be looked at once more because the index has lost, or does not know yet, what it held of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio
from pyroaring import BitMap

from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.tracker.index.interface import NOT_DELAYED_MS

if TYPE_CHECKING:
    from geminga.broker.flow.statistics import BucketStatistics
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.tracker.index.interface import DelayedDeliveryTracker, LatenessCounts

WINDOW_ENTRIES = 65_536
"""How far one look for entries that are not held back goes: one container of a bitmap, about 10 us."""
EARLY_MAX = 1000
"""Entries, or a read more, that are kept while a tracker is being opened; those beyond are read again."""
RANGES_MAX = 1000
"""Ranges to be read again that are kept apart; beyond it the last two become one, which costs reads only."""

_entry_id = attrgetter("position.entry_id")


class DelayPolicy(NamedTuple):
    """What a topic's delayed messages are subject to now."""

    active: bool = True
    """False: entries are dispatched when they are read. Those held back already keep their time."""
    tick_ms: int | None = None
    """How early a message may come if delivery is not strict; None: as the tracker was made."""


class LedgerRange(NamedTuple):
    """Ledgers `first` to `last`, both included."""

    first: int
    last: int


def _no() -> bool:
    return False


def _not_counted(entries: Sequence[Entry]) -> None:
    pass


def _nowhere(ledger_id: int, entry_id: int) -> bool:
    return False


def _none_of(ledger_id: int) -> BitMap:
    return BitMap()


class Window(NamedTuple):
    """A run of entries of one ledger, from the unacknowledged one at `place` up to and without `end`."""

    place: Position
    free: BitMap | None
    """Those that are neither acknowledged nor held back; None: nothing of it is held back."""
    end: Position


class OwnIndex(Protocol):
    """What keeps an index that belongs to one subscription."""

    def bucket_statistics(self) -> BucketStatistics | None: ...

    async def clear(self) -> None:
        """The index was cleared: nothing on disk names what was in it on return."""
        ...

    async def stop(self) -> None:
        """Write nothing any more; what is sealed stays."""
        ...


OpenTracker = Callable[["DelayedEntries"], Awaitable["DelayedDeliveryTracker"]]


class DelayedEntries:
    """One subscription's. Its tracker is opened with the first entry that has to wait, and stays when
    consumers come and go.

    An entry is held back exactly while the tracker contains it; reads leave those out, so that an entry is
    read once to learn its time and once more when it is due.
    """

    __slots__ = (
        "_again",
        "_again_asked",
        "_again_at",
        "_early",
        "_is_closed",
        "_ledger",
        "_left_out",
        "_open",
        "_opening",
        "_policy",
        "clears",
        "cursor",
        "has_index",
        "home",
        "is_opening",
        "is_out",
        "is_unknown",
        "on_looked_up",
        "out_of",
        "overrides",
        "start_soon",
        "tracker",
        "wake",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: Cursor,
        open_tracker: OpenTracker,
        policy: DelayPolicy,
        wake: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self.cursor = cursor
        self._open = open_tracker
        self._opening: trio.Lock | None = None
        """Made with its first use: most topics are idle."""
        self._policy = policy
        self._again: list[LedgerRange] = []
        self._again_at: Position | None = None
        self._again_asked = self._again
        self._early: list[Entry] = []
        """Read while the tracker was being opened, and to be held back."""
        self._left_out: list[LedgerRange] = []
        """To be read again when the index is not full any more."""
        self._is_closed = False
        self.tracker: DelayedDeliveryTracker | None = None
        self.clears = 0
        """How often `clear` was called."""
        self.is_unknown: Callable[[int], bool] | None = None
        """While an index that was found at a start is being read: whether it may yet say when entries of this
        ledger are due. `read_again` is called for each range of ledgers when that is settled.
        """
        self.on_looked_up: Callable[[Sequence[Entry]], None] = _not_counted
        """Hears of entries with a delivery time that were read: new ones, or perhaps once more."""
        self.home: OwnIndex | None = None
        """What keeps the tracker's index, where it is this subscription's own."""
        self.overrides: Mapping[int, int] = {}
        """Other due times than the entries say, by ledger id << 32 | entry id."""
        self.is_out: Callable[[int, int], bool] = _nowhere
        """Whether an entry is with a consumer or to be sent again; the dispatcher sets it."""
        self.out_of: Callable[[int], BitMap] = _none_of
        """Which entries of a ledger that are; set together with it."""
        self.has_index: Callable[[], bool] = _no
        """Whether there is an index already that `open` would look at."""
        self.start_soon: Callable[[Callable[[], Awaitable[None]]], None] | None = None
        """Runs `open` beside the dispatcher, where the topic has a nursery for it."""
        self.is_opening = False
        """Whether that is under way."""
        self.wake = wake
        """Has the subscription's dispatcher run soon."""

    # -- what it is ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.tracker) if self.tracker is not None else 0

    def memory_bytes(self) -> int:
        return self.tracker.memory_bytes() if self.tracker is not None else 0

    def bucket_statistics(self) -> BucketStatistics | None:
        """Of an index of this subscription's own that keeps buckets."""
        return self.home.bucket_statistics() if self.home is not None else None

    def lateness(self) -> LatenessCounts | None:
        """None: nothing was held back yet."""
        return self.tracker.lateness() if self.tracker is not None else None

    @property
    def policy(self) -> DelayPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: DelayPolicy) -> None:
        """In force from the next entry that is read, or falls due, on."""
        self._policy = policy
        if self.tracker is not None:
            self._apply_tick()
            self.wake()

    def _apply_tick(self) -> None:
        if self._policy.tick_ms is not None and self.tracker is not None:
            self.tracker.set_tick(self._policy.tick_ms)

    async def open(self) -> DelayedDeliveryTracker:
        """The tracker, opened if it is not there yet. Cancelling leaves it closed."""
        if self._opening is None:
            self._opening = trio.Lock()
        async with self._opening:
            if self.tracker is None:
                tracker = await self._open(self)
                self.tracker = tracker
                self._apply_tick()
            return self.tracker

    def open_beside(self, entries: Sequence[Entry]) -> bool:
        """Open the tracker while undelayed entries go on, and hold these back then. False: it cannot be done
        so.
        """
        if self.start_soon is None:
            return False
        if not self.is_opening:
            self.is_opening = True
            self.start_soon(self._open_beside)
        if len(self._early) < EARLY_MAX:
            # Without their bodies, which may be of any size.
            self._early += [Entry(entry.position, b"", entry.peek) for entry in entries]
        else:
            self.read_again(entries[0].position.ledger_id, entries[-1].position.ledger_id)
        return True

    async def _open_beside(self) -> None:
        try:
            if not self._is_closed:
                await self.open()
        finally:
            self.is_opening = False
        early, self._early = self._early, []
        early = [entry for entry in early if not self.cursor.is_acknowledged(entry.position)]
        if self.tracker is not None and early:
            held = self.hold_back(early)
            for ledger_id in {e.position.ledger_id for e in early if e.position not in held}:
                self.read_again(ledger_id, ledger_id)
            if self._again:
                self.leap()
        self.wake()

    async def clear(self) -> None:
        """Nothing is held back any more, and nothing to be read again: the cursor has moved."""
        self.all_again()
        self.clears += 1
        if self.tracker is not None:
            await self.tracker.clear()
        if self.home is not None:
            await self.home.clear()

    async def close(self) -> None:
        """Release memory; what is durable stays. Nothing is opened any more."""
        self._is_closed = True
        if self._opening is None:
            self._opening = trio.Lock()
        async with self._opening:
            self.all_again()
            if self.home is not None:
                await self.home.stop()
            if self.tracker is not None:
                tracker, self.tracker = self.tracker, None
                await tracker.close()

    # -- entries ---------------------------------------------------------------------------------------------

    def hold_back(self, entries: Sequence[Entry]) -> set[Position]:
        """Which of these entries, all with a delivery time, are to wait: those are in the index now, or are
        read again when it has room for them.

        The tracker must be open.
        """
        self.on_looked_up(entries)
        tracker = self.tracker
        assert tracker is not None
        held: set[Position] = set()
        if not self._policy.active:
            return held
        start = 0
        while start < len(entries):
            ledger_id = entries[start].position.ledger_id
            stop = start + 1
            while stop < len(entries) and entries[stop].position.ledger_id == ledger_id:
                stop += 1
            part = entries[start:stop]
            times = [entry.peek.deliver_at_ms for entry in part]
            if self.overrides:
                changed = self.overrides.get
                codes = [entry.position.ledger_id << 32 | entry.position.entry_id for entry in part]
                times = [changed(code, at_ms) for code, at_ms in zip(codes, times, strict=True)]
            if tracker.is_full():
                refused = tracker.refused(times)
                if len(refused) < len(part):
                    self._left_out = _with_range(self._left_out, LedgerRange(ledger_id, ledger_id))
            else:
                refused = tracker.add_many(ledger_id, list(map(_entry_id, part)), times)
            held.update(entry.position for entry in part)
            held.difference_update(part[place].position for place in refused)
            start = stop
        return held

    @property
    def is_complete(self) -> bool:
        """Whether the tracker contains all that was read and has to wait: nothing was left out for want of
        room, passed over, or lost.
        """
        return not (self.is_opening or self._again or self._early or self._left_out)

    @property
    def lost_ranges(self) -> Sequence[LedgerRange]:
        """What is to be read again: in order, the first one perhaps read in part."""
        return self._again

    @property
    def left_out_ranges(self) -> Sequence[LedgerRange]:
        """What is to be read again when the index has room."""
        return self._left_out

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

    def early_max_ms(self) -> int:
        """By so much an entry that is sent now may be before its time."""
        return self.tracker.early_max_ms() if self.tracker is not None else 0

    def holds(self, position: tuple[int, int]) -> bool:
        return self.tracker is not None and self.tracker.contains(position)

    def is_settled(self, position: tuple[int, int]) -> bool:
        """Whether this subscription has delivered an entry, perhaps without an answer yet."""
        return self.cursor.is_acknowledged(position) or self.is_out(*position)

    def saw_undelayed(self, position: Position) -> None:
        """An entry without a delivery time came by, so not all of them have the same delay."""
        if self.tracker is not None:
            self.tracker.add(position, NOT_DELAYED_MS)

    def passed(self, positions: Sequence[tuple[int, int]]) -> None:
        """These were acknowledged although nobody has got them."""
        if self.tracker is not None and len(self.tracker):
            self.tracker.pass_positions(positions)

    def mark_delete_moved(self, position: Position) -> None:
        """Everything up to here was acknowledged, by someone who is no consumer."""
        if self.tracker is not None:
            self.tracker.mark_delete_moved(position)

    # -- the backlog without what is held back ---------------------------------------------------------------

    def window(self, start: Position, stop: Position | None = None, *, skips: bool = True) -> Window | None:
        """The part of the backlog that is next from `start` on and before `stop`: in one ledger, and at most
        `WINDOW_ENTRIES` long. None: there is nothing left.

        Of a ledger that is unknown (see `is_unknown`) nothing is free: it is passed over, and read once it is
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
        if self.is_unknown is not None and self.is_unknown(ledger_id):
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
        self._again = _with_range(self._again, LedgerRange(first_ledger, last_ledger))
        self._again_at = None
        self.wake()

    def has_gaps(self) -> bool:
        """Whether reads have to look at the index: something is held back, or it is not known yet what."""
        return len(self) > 0 or self.is_unknown is not None

    def next_again(self, read_position: Position) -> Window | None:
        """The next part of what is to be read again; None: nothing is, any more.

        To be told how far it was read by `again_up_to`.
        """
        if self._left_out and not (self.tracker is not None and self.tracker.is_full()):
            left_out, self._left_out = self._left_out, []
            for part in left_out:
                self.read_again(*part)
        while self._again:
            part = self._again[0]
            start = self._again_at or Position(part.first, 0)
            window = self.window(start, min(read_position, Position(part.last + 1, 0)))
            if window is not None:
                self._again_asked = self._again
                return window
            del self._again[0]
            self._again_at = None
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
        if self.cursor.read_position > self._ledger.last_confirmed:
            tracker.caught_up()

    def stopped_reading(self) -> None:
        """The last consumer has left: other subscriptions do not wait for the rest of the backlog."""
        if self.tracker is not None:
            self.tracker.stopped_reading()

    def again_up_to(self, position: Position) -> None:
        """What `next_again` returned was read up to here. If more was lost since, all of it is still to be
        read.
        """
        if self._again_asked is self._again:
            self._again_at = position

    def all_again(self) -> None:
        """The whole backlog is about to be read: nothing is to be read once more."""
        self._again = []
        self._early = []
        self._left_out = []


def _with_range(ranges: list[LedgerRange], more: LedgerRange) -> list[LedgerRange]:
    """In order, and no two that touch."""
    ranges = sorted([*ranges, more])
    merged = ranges[:1]
    for part in ranges[1:]:
        if part.first <= merged[-1].last + 1 or len(merged) >= RANGES_MAX:
            merged[-1] = LedgerRange(merged[-1].first, max(merged[-1].last, part.last))
        else:
            merged.append(part)
    return merged
