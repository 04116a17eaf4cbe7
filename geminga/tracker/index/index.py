"""The index of delayed positions: one code for the tracker in memory and for the one with buckets on the
bookie, for one subscription and for a whole topic.

They differ in where sealed rows are held (`seal`) and in how many readers there are. Everything is plain and
synchronous; rows to be written or read go to `Buckets`, which calls back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from geminga.clock import Clock
from geminga.tracker.format.rows import Rows, code_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.bucket_map import BucketMap
from geminga.tracker.index.due_rows import DueBatch, changed_among, members_of, release
from geminga.tracker.index.feed import Feed
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.reader import Reader
from geminga.tracker.index.sources import GATHERED_ROWS_MAX, Queue
from geminga.tracker.index.time_rules import TimeRules

DUE_ROWS_MAX: Final = 4 * GATHERED_ROWS_MAX
# A subscription without permits leaves what is due unread for as long as it likes; as bitmaps that is
# bounded.
DUE_BATCHES_MAX: Final = 1024
"""What is due and not taken by some view is kept in order up to these bounds, beyond as bitmaps."""
EARLY_ROWS_MAX: Final = 2 * GATHERED_ROWS_MAX
EARLY_BATCHES_MAX: Final = DUE_BATCHES_MAX // 2
"""What is due to some views and not to others: above that, the rest waits for its own time."""
# All rows that fall due are compared with them.
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
    """Positions that are not due yet, with their times, and a reader for each subscription. Without
    buckets it is Pulsar's InMemoryDelayedDeliveryTracker.

    A position leaves the index when its time has come; from then on each reader has it until it takes it.
    """

    def __init__(
        self,
        clock: Clock,
        settings: IndexSettings,
        seal: Callable[[Frozen], None] | None = None,
        poke: Callable[[], None] | None = None,
        passed_by_all: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`seal` takes rows that are to be a bucket; None: they stay in memory. `poke` is called when
        `wanted` or `buckets.released` may have something new. `passed_by_all`: the position up to which
        everything is acknowledged by subscriptions that may open a view later.
        """
        self.settings = settings
        self.clock = clock
        # The bound method: one call less for each add.
        self.now_ms = clock.now_ms
        self.rules = TimeRules(settings.tick_ms, settings.strict, settings.exact)
        self._slack = self.rules.by_tick
        self.members = Membership()
        self.queue = Queue()
        self.overrides: dict[int, int] = {}
        """Other times that were asked for, by code; kept times. A row with another time is dead."""
        self.readers: list[Reader] = []
        # Always an empty one at the end, so that a reader at the end needs no case of its own.
        self.last_batch = DueBatch()
        self._due: deque[DueBatch] = deque()
        self._due_rows = 0
        self.buckets = BucketMap(self.queue, self.members, settings.indexes_min, poke)
        self.feed = Feed(self.members, self.queue, self.rules, settings.indexes_min, self.buckets, seal)
        self._feed_add = self.feed.add
        self._passed_by_all = passed_by_all

    def add_reader(self, reader: Reader) -> None:
        # An index of one view forgets what that view passes: a second view would miss it.
        assert self.settings.is_shared or not self.readers
        self.readers.append(reader)

    def remove_reader(self, reader: Reader) -> None:
        reader.due.leave()
        self.readers.remove(reader)
        # A view that was left in place held every later bucket back, and what was due for it in memory.
        self.trim_passed()
        if self.readers:
            self.reader_caught_up()

    # -- adding ----------------------------------------------------------------------------------------------

    def append_run(self, ledger_id: int, first_entry_id: int, deliver_at_ms: Sequence[int]) -> bool:
        """As entries that follow on each other are appended to the topic of a shared index; they must be new.
        A time of 0: no delay. Whether all of them wait here now: of others the dispatcher that reads them
        decides.
        """
        # One look at the clock, and at what waits to be written, for all that were durable together.
        if self.buckets.awaits_writes and self.buckets.is_full():
            return False
        due_ms = self.now_ms() + self._slack.refused_ms
        add, waiting = self._feed_add, 0
        for entry_id, at_ms in enumerate(deliver_at_ms, first_entry_id):
            # What is due by now the dispatcher reads in a moment anyway, and sends it without a detour.
            if at_ms > due_ms:
                add(ledger_id, entry_id, at_ms)
                waiting += 1
        return waiting == len(deliver_at_ms)

    def _early_ms(self) -> int:
        """How early some view is given messages, for which they have to be loaded in time."""
        # The most of all views, as a segment is loaded once for all of them.
        return max((reader.early_ms for reader in self.readers), default=0)

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
                # Expedited, or added late: brought now, it would be due behind rows of later times that some
                # view has yet to read.
                self.take_back(self.feed.earliest_ms())
            # A growing column is not sorted before something in it is due: most rows go into a bucket
            # unsorted.
            self.feed.flush_due(limit_ms)
            parts = self.queue.gather(limit_ms)
            if parts:
                rows, taken = release(parts, self.members, self.overrides)
                # All that was gathered may be dead: then the next rows may be due, and nothing has been
                # brought yet.
                if rows.length:
                    self._let_go(rows)
                    batch = self.last_batch
                    self.last_batch = batch.fill(rows, taken, len(self.readers))
                    self._announce(batch)
                    return True
        return False

    def _bounded_ms(self, limit_ms: int) -> int:
        """This limit; or that of what is due to all views, if many rows beyond that were brought before:
        no view must fall behind with rows that are not due to it.
        """
        for_all_ms = min((reader.limit_ms() for reader in self.readers), default=limit_ms)
        if limit_ms > for_all_ms:
            rows = batches = 0
            for batch in reversed(self._due):
                if not batch.readers or batch.rows.times_ms.item(-1) <= for_all_ms:
                    break
                rows += batch.rows.length
                batches += 1
            # A view with a wide precision would bring all rows of that width in front of those that others
            # wait for.
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
        for reader in self.readers:
            reader.arrived(batch)
        self._due.append(batch)
        self._due_rows += batch.rows.length
        # Views pass batches in their order, so those that all have passed are in front.
        while self._due and not self._due[0].readers:
            self._due_rows -= self._due.popleft().rows.length
        while self._due_rows > DUE_ROWS_MAX or len(self._due) > DUE_BATCHES_MAX:
            # The batch that was just brought stays, however large, or it would be a bitmap before any view
            # has read it.
            if len(self._due) == 1:
                break
            oldest = self._due.popleft()
            self._due_rows -= oldest.rows.length
            for reader in self.readers:
                reader.due.fall_behind(oldest)

    def take_back(self, from_ms: int) -> None:
        """Let wait again what is due and unread, from the first batch on that has a row so late: other rows
        are due before these. A view was given them early, the clock has stepped back, or the tick became
        shorter.
        """
        unread = [batch for batch in self._due if batch.readers]
        late = (n for n, batch in enumerate(unread) if batch.rows.times_ms.item(-1) >= from_ms)
        # All from there on, though some of their rows are earlier: batches are read one after the other.
        first = next(late, len(unread))
        taken = unread[first:]
        places = [reader.due.place_among(unread) for reader in self.readers]
        for number, batch in enumerate(taken, first):
            # Only from the slowest view's row on: rows that every view has read would be delivered a second
            # time.
            start = 0 if min(places)[0] < number else min(row for at, row in places if at == number)
            rows = batch.rows.part(start, batch.rows.length)
            # A row without a member is dead, and would be skipped when it is due.
            self.members.add_all(members_of(rows.codes))
            self.feed.put_back(rows)
            for reader, (at, row) in zip(self.readers, places, strict=True):
                end = batch.rows.length if at > number else row if at == number else 0
                reader.hand_back(rows.codes, max(end - start, 0))
        for reader, (at, _) in zip(self.readers, places, strict=True):
            if at >= first:
                reader.due.leave()
            else:
                reader.due.cut_off(taken)
        self._due = deque(unread[:first])
        self._due_rows = sum(batch.rows.length for batch in self._due)
        if self._due:
            self._due[-1].go_on_with(self.last_batch)

    def _let_go(self, rows: Rows) -> None:
        if self.overrides:
            # Its time has come. Only what waits has another time, and how many there may be is bounded.
            for row in changed_among(rows.codes, self.overrides):
                del self.overrides[rows.codes.item(row)]

    def settle(self) -> None:
        """Nothing waits: let go of the rows that are dead, and let the precision follow the tick."""
        # Only when all is gone: with a new width, rows that are kept by the former one would be out of order.
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
        # Its row stays: if the same position is added again, there are two.
        self.feed.expect_repeats()
        return True

    def cancel(self, positions: Sequence[tuple[int, int]]) -> int:
        """Forget these for all views; how many were tracked."""
        count = 0
        for position in positions:
            found = False
            for reader in self.readers:
                found |= reader.drop(*position)
                # A position that is tracked no more must not count as passed: the length of a view is a
                # difference of the two.
                reader.passed.discard(*position)
            waited = self.discard(*position)
            # A position that all subscriptions of the index have passed was not waiting for any of them.
            count += found or (waited and not (self.settings.is_shared and self.readers))
        self.settle()
        return count

    def discard_up_to(self, position: tuple[int, int]) -> None:
        # A ledger of members that empties may be the end of a bucket, which is looked for only then: with
        # 2,000 buckets a look took 10 ms, after each segment that was loaded.
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
        # Subscriptions that have no view yet count too: their buckets would be read from the backlog again.
        if self._passed_by_all is not None:
            position = min(position, self._passed_by_all())
        if not self.members.is_empty_up_to(*position):
            for reader in self.readers:
                reader.passed.discard_up_to(*position)
            self.discard_up_to(position)

    def trim_passed(self) -> None:
        """Forget what the views have passed: the one that stood furthest back may be gone."""
        if self.readers:
            self.trim(min(reader.mark_delete for reader in self.readers))

    def clear(self) -> None:
        """Forget everything, for all views; `buckets.released` has every bucket after this."""
        self.members.clear()
        self.overrides.clear()
        self.buckets.clear()
        self.feed.forget()
        self.queue.clear()
        self.rules.narrow()
        for reader in self.readers:
            reader.clear()

    # -- other times -----------------------------------------------------------------------------------------

    def reschedule(self, position: tuple[int, int], deliver_at_ms: int) -> bool:
        """Expedite or postpone a position that waits: it becomes due at this time, for all views, at once if
        that has passed. False: it does not wait (any more), or too many have been given other times.
        """
        code = code_of(*position)
        if not self.members.contains(*position):
            return False
        # Refused: making room by dropping an older change would undo that one without a word.
        if len(self.overrides) >= OVERRIDES_MAX and code not in self.overrides:
            return False
        kept_ms = self.rules.kept_ms(max(deliver_at_ms, 0))
        # A view that sleeps until the earliest row sleeps on: to wake it for each of 100,000 later times took
        # a sixth of the CPU of all these changes.
        is_earlier = kept_ms < self.earliest_ms()
        self.overrides[code] = kept_ms
        # A second row, and the first one dies by its time: finding a row in a sealed bucket would mean to
        # read and write that bucket.
        self.feed.reschedule(*position, kept_ms)
        for reader in self.readers:
            reader.times_changed(is_earlier=is_earlier)
        return True

    def restore_overrides(self, times_ms: Mapping[tuple[int, int], int]) -> None:
        """As after a start: other times for positions, tracked or yet to be added."""
        for position, deliver_at_ms in times_ms.items():
            # Also of positions that are not tracked yet: their buckets are being read, or their messages are.
            if not self.reschedule(position, deliver_at_ms) and len(self.overrides) < OVERRIDES_MAX:
                self.overrides[code_of(*position)] = self.rules.kept_ms(deliver_at_ms)
        self.wake()

    def wake(self) -> None:
        for reader in self.readers:
            reader.times_changed()

    # -- buckets ---------------------------------------------------------------------------------------------

    def leap(self, position: tuple[int, int]) -> None:
        """What comes next is added from this position on, and what lies before it beside that."""
        self.feed.leap(code_of(position[0], max(position[1], 0)))

    @property
    def is_behind(self) -> bool:
        """Whether something was added behind the end of the topic that `feed.caught_up` would have sealed."""
        return len(self.feed.tails) > 1

    def reader_caught_up(self) -> None:
        """Nothing is read again for one of the readers, for now: seal what was, unless another goes on. What
        that adds is not to be cut up by those that wait at the end of the topic.
        """
        # Cut off at each look of a subscription at the end of the topic, a lost bucket came back as buckets
        # of one read each.
        if self.is_behind and not any(reader.reads_behind for reader in self.readers):
            self.feed.caught_up()

    def wanted(self, now_ms: int) -> Sequence[tuple[StoredBucket, int]]:
        return self.buckets.wanted(now_ms + self._early_ms())

    def next_wanted_ms(self) -> int | None:
        wanted_ms = self.buckets.next_wanted_ms()
        # As much earlier as some view may be given them.
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
        # Before the members go: the map would take a bucket without members for one that was used up.
        self.buckets.drop(bucket)
        # Also what other sources have of this range: which rows were in the lost bucket only is not known
        # without it.
        self.members.discard_range(first_code, last_code)
        self.feed.expect_repeats()
        for reader in self.readers:
            reader.passed.discard_range(first_code, last_code)
        for reader in self.readers:
            reader.read_again(bucket.start_ledger, bucket.end_ledger)
        return bucket.start_ledger, bucket.end_ledger

    def swap(self, old: Sequence[StoredBucket], new: StoredBucket) -> None:
        self.buckets.swap(old, new)
        self.wake()

    def recovered(self, bucket: StoredBucket, members: Mapping[int, BitMap]) -> None:
        # Some were fed already while the bucket was read: they have two rows now.
        if self.members.add_all(members) < sum(map(len, members.values())):
            self.feed.expect_repeats()
        self.buckets.add(bucket)
        for reader in self.readers:
            reader.recovered(members)

    def __len__(self) -> int:
        """How many positions wait; those that are due are counted by the views that have not taken them."""
        return self.members.count

    def memory_bytes(self) -> int:
        """What the columns, the loaded bytes and the bitmaps take, without the views."""
        # Sizes of arrays and bitmaps, plus fixed costs of objects; bitmaps of many ledgers are sampled.
        # Pulsar's figure was off by up to ten times (issue #23699).
        in_batches = sum(batch.memory_bytes() for batch in self._due if batch.readers)
        return (
            self.feed.memory_bytes() + in_batches + self.buckets.memory_bytes() + self.members.memory_bytes()
        )
