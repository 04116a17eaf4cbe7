"""The index of delayed positions: one code for the tracker in memory and for the one with buckets on the
bookie, for one subscription and for a whole topic.

They differ in where sealed rows are held (`on_frozen`) and in how many views there are. Everything is plain
and synchronous; what has to be written or read is handed to a keeper, which calls back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from geminga.clock import Clock
from geminga.tracker.format.rows import code_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.bucket_map import BucketMap
from geminga.tracker.index.due_rows import DueBatch, members_of, release
from geminga.tracker.index.feed import Feed
from geminga.tracker.index.frozen import Frozen
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.sources import GATHERED_ROWS_MAX, Queue
from geminga.tracker.index.time_rules import TimeRules
from geminga.tracker.index.view import View

DUE_ROWS_MAX: Final = 4 * GATHERED_ROWS_MAX
DUE_BATCHES_MAX: Final = 1024
"""What is due and not taken by some view is kept in order up to these bounds, beyond as bitmaps."""
EARLY_ROWS_MAX: Final = 2 * GATHERED_ROWS_MAX
EARLY_BATCHES_MAX: Final = DUE_BATCHES_MAX // 2
"""What is due to some views and not to others: above that, the rest waits for its own time."""
OVERRIDES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class IndexSettings:
    tick_ms: int = 1000
    strict: bool = True
    exact: bool = False
    """Whether times are kept to the millisecond, as on disk; else to a width."""
    fixed_delay_lookahead: int = 0
    indexes_min: int = 50_000
    is_shared: bool = False
    """Whether several views may be opened."""


class DelayedIndex:
    """Positions that are not due yet, with their times, and the views of those who wait for them.

    A position leaves the index when its time has come; from then on each view has it until it takes it.
    """

    def __init__(
        self,
        clock: Clock,
        settings: IndexSettings,
        on_frozen: Callable[[Frozen], None] | None = None,
        on_wanted: Callable[[], None] | None = None,
        passed_by_all: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`on_frozen` takes rows that are to be sealed; None: they stay in memory. `on_wanted` is called when
        `wanted` or `released` may have something new. `passed_by_all`: the position up to which everything
        is acknowledged by those who may open a view later.
        """
        self.settings = settings
        self.now_ms = clock.now_ms
        self.rules = TimeRules(settings.tick_ms, settings.strict, settings.exact)
        self._slack = self.rules.by_tick
        self.members = Membership()
        self.queue = Queue()
        self.overrides: dict[int, int] = {}
        """Other times that were asked for, by code; kept times. A row with another time is dead."""
        self.views: list[View] = []
        self.last_batch = DueBatch()
        self._due: deque[DueBatch] = deque()
        self._due_rows = 0
        self.buckets = BucketMap(self.queue, self.members, settings.indexes_min, on_wanted)
        self.feed = Feed(
            self.members,
            self.queue,
            self.rules,
            settings.indexes_min,
            self.buckets,
            None if on_frozen is None else self._froze,
        )
        self._feed_add = self.feed.add
        self._on_frozen = on_frozen
        self._passed_by_all = passed_by_all

    def open_view(
        self,
        *,
        wake: Callable[[], None] | None = None,
        reread: Callable[[int, int], None] | None = None,
        is_acknowledged: Callable[[tuple[int, int]], bool] | None = None,
        acknowledged_in: Callable[[int, int, int], BitMap | None] | None = None,
    ) -> View:
        """A subscription's view; one that shares the index starts with all that is not acknowledged.

        `wake`: something may be due before the time that `next_due_ms` gave. `reread(first, last)`: what is
        neither acknowledged nor contained of these ledgers has to be read from the backlog again.
        `is_acknowledged`: whether the subscription has acknowledged a position, or delivered it; asked
        for what the index has as the view is opened, and for what another view adds. `acknowledged_in`
        (ledger, first entry, one past the last) is asked instead for what is there by the ledger: all such
        entries but those up to mark-delete, which `mark_delete_moved` tells; 10 million take milliseconds.
        """
        assert self.settings.is_shared or not self.views
        view = View(self, wake, reread, is_acknowledged, acknowledged_in)
        self.views.append(view)
        return view

    def close_view(self, view: View) -> None:
        view.due.leave()
        self.views.remove(view)
        self.trim_passed()
        if self.views:
            self.view_caught_up()

    # -- adding ----------------------------------------------------------------------------------------------

    def append(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """As an entry is appended to the topic of a shared index; it must be new. False: it is due, or the
        index is full; then whoever reads it finds that out.
        """
        if deliver_at_ms <= self.now_ms() + self._slack.refused_ms:
            return False
        if self.buckets.awaits_writes and self.is_full():
            return False
        self._feed_add(ledger_id, entry_id, deliver_at_ms)
        return True

    def is_full(self) -> bool:
        """Whether more rows wait to be sealed than memory is meant for, so that no more should be added."""
        return self.buckets.is_full()

    def _early_ms(self) -> int:
        """How early some view is given messages, for which they have to be loaded in time."""
        return max((view.early_ms for view in self.views), default=0)

    def set_tick(self, tick_ms: int) -> None:
        if tick_ms != self.rules.tick_ms:
            self.rules.set_tick(tick_ms)
            self.settle()

    # -- what is due -----------------------------------------------------------------------------------------

    def bring(self, limit_ms: int) -> bool:
        """Fill the last batch with what is due at `limit_ms`. False: nothing is, it has to be loaded, or
        enough rows were brought already that are due to some views and not to others.
        """
        limit_ms = self._bounded_ms(limit_ms)
        while self.earliest_ms() <= limit_ms:
            if self._is_overtaken():
                self.take_back(self.feed.earliest_ms())
            self.feed.flush_due(limit_ms)
            parts = self.queue.gather(limit_ms)
            if parts:
                rows, taken = release(parts, self.members, self.overrides)
                if rows.length:
                    self._let_go(taken)
                    batch = self.last_batch
                    self.last_batch = batch.fill(rows, taken, len(self.views))
                    self._announce(batch)
                    return True
        return False

    def _bounded_ms(self, limit_ms: int) -> int:
        """This limit; or that of what is due to all views, if many rows beyond that were brought before:
        no view must fall behind with rows that are not due to it.
        """
        for_all_ms = min((view.limit_ms() for view in self.views), default=limit_ms)
        if limit_ms > for_all_ms:
            rows = batches = 0
            for batch in reversed(self._due):
                if not batch.readers or batch.rows.times_ms.item(-1) <= for_all_ms:
                    break
                rows += batch.rows.length
                batches += 1
            if rows > EARLY_ROWS_MAX or batches > EARLY_BATCHES_MAX:
                return for_all_ms
        return limit_ms

    def _is_overtaken(self) -> bool:
        """Whether something was made due earlier than what some view has yet to read."""
        if not self._due or not self._due[-1].readers:
            return False
        return self.feed.earliest_ms() < self._due[-1].rows.times_ms.item(-1)

    def earliest_ms(self) -> int:
        """The kept time of the earliest row that is at hand; later than all times if there is none."""
        earliest_ms, head_ms = self.feed.earliest_ms(), self.queue.head_ms()
        return earliest_ms if head_ms is None else min(earliest_ms, head_ms)

    def _announce(self, batch: DueBatch) -> None:
        for view in self.views:
            view.arrived(batch)
        self._due.append(batch)
        self._due_rows += batch.rows.length
        while self._due and not self._due[0].readers:
            self._due_rows -= self._due.popleft().rows.length
        while self._due_rows > DUE_ROWS_MAX or len(self._due) > DUE_BATCHES_MAX:
            if len(self._due) == 1:
                break
            oldest = self._due.popleft()
            self._due_rows -= oldest.rows.length
            for view in self.views:
                view.due.fall_behind(oldest)

    def take_back(self, from_ms: int) -> None:
        """Let wait again what is due and unread, from the first batch on that has a row so late: other rows
        are due before these. A view was given them early, the clock has stepped back, or the tick became
        shorter.
        """
        unread = [batch for batch in self._due if batch.readers]
        late = (n for n, batch in enumerate(unread) if batch.rows.times_ms.item(-1) >= from_ms)
        first = next(late, len(unread))
        taken = unread[first:]
        places = [view.due.place_among(unread) for view in self.views]
        for number, batch in enumerate(taken, first):
            start = 0 if min(places)[0] < number else min(row for at, row in places if at == number)
            rows = batch.rows.part(start, batch.rows.length)
            self.members.add_all(members_of(rows.codes))
            self.feed.put_back(rows)
            for view, (at, row) in zip(self.views, places, strict=True):
                end = batch.rows.length if at > number else row if at == number else 0
                view.hand_back(rows.codes, max(end - start, 0))
        for view, (at, _) in zip(self.views, places, strict=True):
            if at >= first:
                view.due.leave()
            else:
                view.due.cut_off(taken)
        self._due = deque(unread[:first])
        self._due_rows = sum(batch.rows.length for batch in self._due)
        if self._due:
            self._due[-1].next = self.last_batch

    def _let_go(self, taken: Mapping[int, BitMap]) -> None:
        if self.overrides:
            for code in [code for code in self.overrides if (code & 0xFFFFFFFF) in taken.get(code >> 32, ())]:
                del self.overrides[code]

    def settle(self) -> None:
        """Nothing waits: let go of the rows that are dead, and let the precision follow the tick."""
        if not self.members.count:
            self.feed.forget()
            self.overrides.clear()
            self.rules.narrow()
            if self.buckets:
                self.buckets.progressed()

    # -- forgetting ------------------------------------------------------------------------------------------

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Forget a position that waits. For the only view, or for what no view has any more."""
        if not self.members.discard(ledger_id, entry_id):
            return False
        if self.overrides:
            self.overrides.pop(code_of(ledger_id, entry_id), None)
        self.feed.expect_repeats()
        return True

    def cancel(self, positions: Sequence[tuple[int, int]]) -> int:
        """Forget these for all views; how many were tracked."""
        count = 0
        for position in positions:
            found = [view.pass_one(*position) for view in self.views]
            for view in self.views:
                view.passed.discard(*position)
            waited = self.discard(*position)
            count += any(found) if self.views else waited
        self.settle()
        return count

    def discard_up_to(self, position: tuple[int, int]) -> None:
        closed = self.members.closed
        if not self.members.is_empty_up_to(*position) and self.members.discard_up_to(*position):
            self.feed.expect_repeats()
            self.settle()
            if self.members.closed != closed and self.buckets:
                self.buckets.progressed()

    def trim(self, position: tuple[int, int]) -> None:
        """All views have passed everything up to here."""
        if self.members.is_empty_up_to(*position):
            return
        if self._passed_by_all is not None:
            position = min(position, self._passed_by_all())
        if not self.members.is_empty_up_to(*position):
            for view in self.views:
                view.passed.discard_up_to(*position)
            self.discard_up_to(position)

    def trim_passed(self) -> None:
        """Forget what the views have passed: the one that stood furthest back may be gone."""
        if self.views:
            self.trim(min(view.mark_delete for view in self.views))

    def clear(self) -> None:
        """Forget everything, for all views; `released` has every bucket after this."""
        self.members.clear()
        self.overrides.clear()
        self.buckets.clear()
        self.feed.forget()
        self.queue.clear()
        self.rules.narrow()
        for view in self.views:
            view.forget_all()

    # -- other times -----------------------------------------------------------------------------------------

    def reschedule(self, position: tuple[int, int], deliver_at_ms: int) -> bool:
        """Expedite or postpone a position that waits: it becomes due at this time, for all views, at once if
        that has passed. False: it does not wait (any more), or too many have been given other times.
        """
        code = code_of(*position)
        if not self.members.contains(*position):
            return False
        if len(self.overrides) >= OVERRIDES_MAX and code not in self.overrides:
            return False
        kept_ms = self.rules.kept_ms(max(deliver_at_ms, 0))
        self.overrides[code] = kept_ms
        self.feed.reschedule(*position, kept_ms)
        self.wake()
        return True

    def restore_overrides(self, times_ms: Mapping[tuple[int, int], int]) -> None:
        """As after a start: other times for positions, tracked or yet to be added."""
        for position, deliver_at_ms in times_ms.items():
            if not self.reschedule(position, deliver_at_ms) and len(self.overrides) < OVERRIDES_MAX:
                self.overrides[code_of(*position)] = self.rules.kept_ms(deliver_at_ms)
        self.wake()

    def wake(self) -> None:
        for view in self.views:
            view.is_plain = False
            view.wake()

    # -- buckets ---------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Have what the growing parts hold sealed now, whatever its size, as before a shutdown or in a
        test.
        """
        self.feed.freeze_all()

    def leap(self, position: tuple[int, int]) -> None:
        """What comes next is added from this position on, and what lies before it beside that."""
        self.feed.leap(code_of(position[0], max(position[1], 0)))

    @property
    def is_behind(self) -> bool:
        """Whether something was added behind the end of the topic that `caught_up` would have sealed."""
        return len(self.feed.tails) > 1

    def caught_up(self) -> None:
        """Nothing is read again any more, for now."""
        self.feed.caught_up()

    def view_caught_up(self) -> None:
        """The same, unless some view goes on: what it adds is not to be cut up by those that wait at the end
        of the topic.
        """
        if self.is_behind and not any(view.reads_behind for view in self.views):
            self.caught_up()

    def _froze(self, frozen: Frozen) -> None:
        self.buckets.froze(frozen)
        assert self._on_frozen is not None
        self._on_frozen(frozen)

    def wanted(self, now_ms: int) -> Sequence[tuple[StoredBucket, int]]:
        return self.buckets.wanted(now_ms + self._early_ms())

    def next_wanted_ms(self) -> int | None:
        wanted_ms = self.buckets.next_wanted_ms()
        return None if wanted_ms is None else wanted_ms - self._early_ms()

    def segment_loaded(self, bucket: StoredBucket, number: int, entry: bytes) -> None:
        self.buckets.segment_loaded(bucket, number, entry, self.now_ms())
        self.wake()

    def sealed(self, frozen: Frozen, bucket: StoredBucket) -> None:
        self.buckets.sealed(frozen, bucket, self.now_ms())
        self.wake()

    def sealed_none(self, frozen: Frozen) -> None:
        self.buckets.thaw(frozen)
        self.wake()

    def bucket_lost(self, bucket: StoredBucket) -> tuple[int, int]:
        first_code, last_code = bucket.first_code, bucket.last_code
        self.buckets.drop(bucket)
        self.members.discard_range(first_code, last_code)
        self.feed.expect_repeats()
        for view in self.views:
            view.passed.discard_range(first_code, last_code)
        for view in self.views:
            view.read_again(bucket.start_ledger, bucket.end_ledger)
        return bucket.start_ledger, bucket.end_ledger

    def swap(self, old: Sequence[StoredBucket], new: StoredBucket) -> None:
        self.buckets.swap(old, new)
        self.wake()

    def recovered(self, bucket: StoredBucket, members: Mapping[int, BitMap]) -> None:
        if self.members.add_all(members) < sum(map(len, members.values())):
            self.feed.expect_repeats()
        self.buckets.add(bucket)
        for view in self.views:
            view.recovered(members)

    def released(self) -> Sequence[StoredBucket]:
        return self.buckets.released()

    def live(self, first_code: int, last_code: int) -> Mapping[int, BitMap]:
        return self.members.between(first_code, last_code)

    def live_count(self, first_code: int, last_code: int) -> int:
        return self.members.count_between(first_code, last_code)

    def __len__(self) -> int:
        """How many positions wait; those that are due are counted by the views that have not taken them."""
        return self.members.count

    def memory_bytes(self) -> int:
        """What the columns, the loaded bytes and the bitmaps take, without the views."""
        in_batches = sum(batch.memory_bytes() for batch in self._due if batch.readers)
        return (
            self.feed.memory_bytes() + in_batches + self.buckets.memory_bytes() + self.members.memory_bytes()
        )
