"""The index against plain dictionaries: whatever is done to it, nothing is lost, early or doubled, and the
count is the number of positions. Half of the programs run under a virtual clock, with jumps.

GEMINGA_TESTS=night runs 20,000 random programs instead of those of a test run.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from geminga.clock import Clock, VirtualClock
from geminga.position import Position
from geminga.tracker.format.bucket_format import decode_directory, decode_segment, encode_bucket
from geminga.tracker.format.rows import Rows, merge, split_repeated
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.due_rows import codes_of, keep_only
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.time_rules import Slack
from geminga.tracker.index.view import View
from tests.budget import budget
from tests.tracker.taking import take

PROGRAMS = budget(day=250, night=20_000)
LEDGERS = 6
ENTRIES = 40
START_MS = 100_000
DAY_MS = 86_400_000


class HandClock:
    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


class Subscriber:
    """One view and what it should hold."""

    def __init__(self, index: DelayedIndex, by_bitmaps: bool) -> None:
        self.by_bitmaps = by_bitmaps
        self.tracked: set[tuple[int, int]] = set()
        self.taken: set[tuple[int, int]] = set()
        """Delivered, not acknowledged."""
        self.acked: set[tuple[int, int]] = set()
        self.mark_delete = (0, -1)
        self.lost_ranges: list[tuple[int, int]] = []
        self.precision_ms: int | None = None
        self.is_woken = False
        self.open(index)

    def wake(self) -> None:
        self.is_woken = True

    def open(self, index: DelayedIndex) -> None:
        self.view: View = View(
            index,
            wake=self.wake,
            reread=lambda first, last: self.lost_ranges.append((first, last)),
            is_acknowledged=lambda position: (
                position in self.acked or position in self.taken or position <= self.mark_delete
            ),
            acknowledged_in=self.acknowledged_in if self.by_bitmaps else None,
        )
        if self.by_bitmaps:
            self.view.mark_delete_moved(self.mark_delete)
        self.view.set_precision(self.precision_ms)

    def acknowledged_in(self, ledger_id: int, first: int, stop: int) -> BitMap | None:
        """As a cursor answers: nothing of what its mark-delete says already."""
        beyond = {p for p in self.acked | self.taken if p > self.mark_delete}
        return BitMap([e for ledger, e in beyond if ledger == ledger_id and first <= e < stop]) or None


class AgainstDictionaries(RuleBasedStateMachine):
    """One topic. `times` has the delivery time of every entry that was published."""

    @initialize(
        shared=st.booleans(),
        views=st.integers(1, 3),
        durable=st.booleans(),
        strict=st.booleans(),
        tick_ms=st.sampled_from([1, 16, 100, 1000]),
        by_bitmaps=st.booleans(),
        is_virtual=st.booleans(),
    )
    def begin(
        self,
        shared: bool,
        views: int,
        durable: bool,
        strict: bool,
        tick_ms: int,
        by_bitmaps: bool,
        is_virtual: bool,
    ) -> None:
        self.machine = HandClock()
        self.clock: Clock = VirtualClock(wall_ms=self.machine.now_ms) if is_virtual else self.machine
        self.settings = IndexSettings(tick_ms, strict, exact=durable, indexes_min=15, is_shared=shared)
        self.durable = durable
        self.times: dict[tuple[int, int], int] = {}
        self.other_times: dict[tuple[int, int], int] = {}
        self.frozen: list[Frozen] = []
        self.stored: dict[StoredBucket, tuple[list[bytes], Any]] = {}
        self.ledger_id = 1
        self.next_entry = 0
        self.buckets_made = 0
        self.index = self.new_index()
        self.subscribers = [Subscriber(self.index, by_bitmaps) for _ in range(views if shared else 1)]

    def new_index(self) -> DelayedIndex:
        return DelayedIndex(
            self.clock,
            self.settings,
            self.frozen.append if self.durable else None,
            passed_by_all=lambda: min(subscriber.mark_delete for subscriber in self.subscribers),
        )

    # -- what is expected ------------------------------------------------------------------------------------

    def kept_ms(self, position: tuple[int, int]) -> int:
        rules = self.index.rules
        other_ms = self.other_times.get(position)
        return rules.kept_ms(self.times[position]) if other_ms is None else other_ms

    def slack(self, subscriber: Subscriber) -> Slack:
        rules = self.index.rules
        return rules.by_tick if subscriber.precision_ms is None else rules.by_width

    def due(self, subscriber: Subscriber, early_ms: int = 0) -> list[tuple[int, int]]:
        limit_ms = self.clock.now_ms() + self.slack(subscriber).due_ms + early_ms
        keyed = sorted((self.kept_ms(position), position) for position in subscriber.tracked)
        return [position for kept_ms, position in keyed if kept_ms <= limit_ms]

    def is_worth_tracking(self, at_ms: int, slack: Slack | None = None) -> bool:
        return at_ms > self.clock.now_ms() + (slack or self.index.rules.by_tick).refused_ms

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(self, count: int, at_ms: list[int]) -> None:
        entries = range(self.next_entry, self.next_entry + count)
        self.next_entry += count
        for entry_id, ms in zip(entries, at_ms, strict=True):
            self.times[self.ledger_id, entry_id] = ms
        if self.settings.is_shared:
            for entry_id in entries:
                position = (self.ledger_id, entry_id)
                kept = self.index.append_run(*position, (self.times[position],))
                assert kept == self.is_worth_tracking(self.times[position])
                for subscriber in self.subscribers:
                    (subscriber.tracked if kept else subscriber.taken).add(position)
        else:
            [subscriber] = self.subscribers
            refused = set(subscriber.view.add_many(self.ledger_id, list(entries), at_ms))
            for place, entry_id in enumerate(entries):
                assert (place in refused) != self.is_worth_tracking(at_ms[place], self.slack(subscriber))
                position = (self.ledger_id, entry_id)
                (subscriber.taken if place in refused else subscriber.tracked).add(position)

    @rule(delays=st.lists(st.integers(-20, 4000), min_size=1, max_size=12))
    def publish_random(self, delays: list[int]) -> None:
        self.publish(len(delays), [self.clock.now_ms() + delay for delay in delays])

    @rule(count=st.integers(8, 25), delay=st.integers(500, 4000))
    def publish_fixed(self, count: int, delay: int) -> None:
        self.publish(count, [self.clock.now_ms() + delay + n // 8 for n in range(count)])

    @precondition(lambda self: self.ledger_id < LEDGERS)
    @rule()
    def turn_ledger(self) -> None:
        self.ledger_id += 1
        self.next_entry = 0

    @rule(data=st.data())
    def offer_again(self, data: st.DataObject) -> None:
        """A position that was read before, as after a redelivery."""
        subscriber = data.draw(st.sampled_from(self.subscribers))
        candidates = sorted(subscriber.tracked | subscriber.taken)
        if candidates:
            self.offer(subscriber, data.draw(st.sampled_from(candidates)))

    def offer(self, subscriber: Subscriber, position: tuple[int, int]) -> None:
        if position not in subscriber.tracked and position in self.other_times:
            return  # others have it yet, with a time that the index has forgotten as it is due
        kept = subscriber.view.add(Position(*position), self.times[position])
        assert kept == self.is_worth_tracking(self.times[position], self.slack(subscriber))
        (subscriber.tracked if kept else subscriber.taken).add(position)
        (subscriber.taken if kept else subscriber.tracked).discard(position)

    def forget_other_times(self) -> None:
        """Of what nobody waits for."""
        tracked = set[tuple[int, int]]().union(*(s.tracked for s in self.subscribers))
        self.other_times = {p: ms for p, ms in self.other_times.items() if p in tracked}

    # -- time ------------------------------------------------------------------------------------------------

    @rule(step_ms=st.integers(0, 1500))
    def pass_time(self, step_ms: int) -> None:
        self.machine.ms += step_ms

    @rule(step_ms=st.integers(1, 300))
    def step_back(self, step_ms: int) -> None:
        """The machine's clock is set back; a virtual one stands still until it has caught up."""
        self.machine.ms -= step_ms

    @precondition(lambda self: isinstance(self.clock, VirtualClock))
    @rule(length_ms=st.integers(0, 40 * DAY_MS), share=st.floats(0, 1))
    def jump(self, length_ms: int, share: float) -> None:
        """As a jump of the broker's clock, with a stop at the next due time or anywhere."""
        assert isinstance(self.clock, VirtualClock)
        to_ms = self.clock.now_ms() + length_ms
        due_ms = [s.view.next_due_ms() for s in self.subscribers]
        stops_ms = [at_ms for at_ms in due_ms if at_ms is not None and at_ms < to_ms]
        with self.clock.held():
            self.clock.move_to(min(stops_ms, default=self.clock.now_ms() + round(share * length_ms)))
            self.wakes_in_time()
            self.clock.move_to(to_ms)

    def load(self) -> None:
        for _ in range(100):
            wanted = self.index.wanted(self.clock.now_ms())
            if not wanted:
                return
            for bucket, number in wanted:
                self.index.segment_loaded(bucket, number, self.stored[bucket][0][number])
        raise AssertionError("loading does not come to an end")

    @rule(count=st.integers(1, 60), data=st.data())
    def take(self, count: int, data: st.DataObject) -> None:
        subscriber = data.draw(st.sampled_from(self.subscribers))
        due = self.due(subscriber)
        may_come = set(self.due(subscriber, max((subscriber.precision_ms or 0) - 1, 0)))
        taken: list[tuple[int, int]] = []
        for _ in range(50):
            self.load()
            assert subscriber.view.has_due() or set(taken) >= set(due)
            more = list(take(subscriber.view, count - len(taken)))
            taken += more
            if not more or len(taken) == count:
                break
        assert len(taken) == len(set(taken)), "doubled"
        assert set(taken) <= may_come, "early, or not tracked"
        assert len(taken) == count or set(taken) >= set(due), "not all that is due"
        subscriber.tracked -= set(taken)
        subscriber.taken |= set(taken)
        self.forget_other_times()

    @rule(data=st.data(), precision_ms=st.sampled_from([None, None, 0, 1, 37, 512, 1000, 3000]))
    def ask_for_a_precision(self, data: st.DataObject, precision_ms: int | None) -> None:
        subscriber = data.draw(st.sampled_from(self.subscribers))
        subscriber.precision_ms = precision_ms
        subscriber.view.set_precision(precision_ms)

    # -- acknowledging ---------------------------------------------------------------------------------------

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        subscriber = data.draw(st.sampled_from(self.subscribers))
        candidates = sorted(subscriber.tracked | subscriber.taken)
        if candidates:
            chosen = data.draw(st.lists(st.sampled_from(candidates), max_size=8, unique=True))
            self.acked(subscriber, set(chosen))
            subscriber.view.pass_positions(chosen)

    @rule(data=st.data())
    def acknowledge_cumulatively(self, data: st.DataObject) -> None:
        subscriber = data.draw(st.sampled_from(self.subscribers))
        position = (data.draw(st.integers(1, self.ledger_id)), data.draw(st.integers(-1, ENTRIES)))
        position = min(position, (self.ledger_id, self.next_entry - 1))
        position = subscriber.mark_delete = max(position, subscriber.mark_delete)
        gone = {p for p in subscriber.tracked | subscriber.taken if p <= position}
        self.acked(subscriber, gone)
        subscriber.view.mark_delete_moved(Position(*position))

    def acked(self, subscriber: Subscriber, positions: set[tuple[int, int]]) -> None:
        subscriber.acked |= positions
        subscriber.tracked -= positions
        subscriber.taken -= positions
        self.forget_other_times()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        candidates = sorted(self.times)
        if candidates:
            chosen = data.draw(st.lists(st.sampled_from(candidates), max_size=4, unique=True))
            tracked = {p for p in chosen if any(p in s.tracked for s in self.subscribers)}
            assert self.index.cancel(chosen) == len(tracked)
            for subscriber in self.subscribers:
                subscriber.acked |= tracked & subscriber.tracked
                subscriber.tracked -= tracked
            self.forget_other_times()

    @rule(data=st.data(), delay=st.integers(-500, 5000))
    def reschedule(self, data: st.DataObject, delay: int) -> None:
        candidates = sorted(set[tuple[int, int]]().union(*(s.tracked for s in self.subscribers)))
        if not candidates:
            return
        position = data.draw(st.sampled_from(candidates))
        self.load()
        asleep = [(subscriber, subscriber.view.next_due_ms()) for subscriber in self.subscribers]
        for subscriber in self.subscribers:
            subscriber.is_woken = False
        is_changed = self.index.reschedule(position, self.clock.now_ms() + delay)
        for subscriber, until_ms in asleep:
            due_ms = subscriber.view.next_due_ms()
            if not subscriber.is_woken and due_ms is not None:
                assert until_ms is not None, "it sleeps for ever"
                assert until_ms <= max(due_ms, self.clock.now_ms()), "it sleeps too long"
        if is_changed:
            self.other_times[position] = self.index.rules.kept_ms(self.clock.now_ms() + delay)
        else:
            assert not self.index.members.contains(*position)

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 9)):
            return
        if self.settings.is_shared:
            subscriber = data.draw(st.sampled_from(self.subscribers))
            subscriber.view.clear()
            subscriber.view.reader.passed.add_all(self.index.members.bitmaps)
            self.acked(subscriber, set(subscriber.tracked))
        else:
            [subscriber] = self.subscribers
            self.index.clear()
            self.acked(subscriber, set(subscriber.tracked))
            self.frozen.clear()
            assert set(self.index.buckets.released()) == set(self.stored)
            self.stored.clear()
            self.other_times.clear()

    # -- buckets ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.durable)
    @rule()
    def freeze(self) -> None:
        self.index.feed.freeze_all()

    @precondition(lambda self: self.durable)
    @rule(ledger_id=st.integers(1, LEDGERS), entry_id=st.integers(0, ENTRIES))
    def leap(self, ledger_id: int, entry_id: int) -> None:
        self.index.leap(min((ledger_id, entry_id), (self.ledger_id, self.next_entry)))

    @precondition(lambda self: self.durable)
    @rule()
    def catch_up(self) -> None:
        self.index.feed.caught_up()
        assert not self.index.is_behind

    def store(self, start: int, end: int, rows: Rows) -> StoredBucket:
        encoded = encode_bucket(start, end, rows, 300, 7)
        directory = decode_directory(encoded.directory)
        self.buckets_made += 1
        bucket = StoredBucket(1000 + self.buckets_made, directory, 1)
        self.stored[bucket] = (encoded.segments, directory.members)
        return bucket

    @precondition(lambda self: self.durable)
    @rule()
    def seal(self) -> None:
        if not self.frozen:
            self.index.feed.freeze_all()
        if not self.frozen:
            return
        frozen = self.frozen.pop(0)
        if not frozen.rows.length:
            self.index.sealed_none(frozen)
            return
        self.index.sealed(frozen, self.store(frozen.start_ledger, frozen.end_ledger, frozen.rows))

    @precondition(lambda self: self.durable)
    @rule()
    def delete_released(self) -> None:
        for bucket in self.index.buckets.released():
            del self.stored[bucket]

    @precondition(lambda self: self.durable and len(self.stored) >= 2)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        self.delete_released()
        ordered = sorted(self.stored, key=lambda bucket: bucket.start_ledger)
        if len(ordered) < 2:
            return
        at = data.draw(st.integers(0, len(ordered) - 2))
        old = ordered[at : at + 2]
        first, last = old[0].start_ledger, old[-1].end_ledger
        if any(first <= frozen.start_ledger <= last for frozen in self.frozen):
            return
        rows = merge([decode_segment(entry) for bucket in old for entry in self.stored[bucket][0]])
        live = self.index.members.between(old[0].first_code, old[-1].last_code)
        if not live:
            return
        rows, _ = split_repeated(keep_only(rows, codes_of(live)))
        if not rows.length:
            return
        new = self.store(first, last, rows)
        self.index.swap(old, new)
        for bucket in old:
            del self.stored[bucket]

    @precondition(lambda self: self.durable and self.stored)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.delete_released()
        if not self.stored:
            return
        bucket = data.draw(st.sampled_from(sorted(self.stored, key=lambda bucket: bucket.start_ledger)))
        del self.stored[bucket]
        assert self.index.bucket_lost(bucket) == (bucket.start_ledger, bucket.end_ledger)
        for subscriber in self.subscribers:
            [(first, last)] = subscriber.lost_ranges
            subscriber.lost_ranges.clear()
            for position in sorted(subscriber.tracked):
                if first <= position[0] <= last and not subscriber.view.contains(position):
                    self.offer(subscriber, position)

    @precondition(lambda self: self.durable)
    @rule()
    def crash(self) -> None:
        """What is not on disk is gone; the buckets are, and the acknowledgements."""
        self.frozen.clear()
        for bucket in self.index.buckets.released():
            del self.stored[bucket]
        self.index = self.new_index()
        for bucket, (_, members) in self.stored.items():
            unacked = [set(members_positions(members)) - s.acked for s in self.subscribers]
            wanted = set[tuple[int, int]]().union(*unacked)
            by_ledger: dict[int, BitMap] = {}
            for ledger_id, entry_id in wanted:
                by_ledger.setdefault(ledger_id, BitMap()).add(entry_id)
            self.index.recovered(bucket, by_ledger)
        self.index.restore_overrides(self.other_times)
        for subscriber in self.subscribers:
            subscriber.tracked |= subscriber.taken
            subscriber.taken.clear()
            subscriber.open(self.index)
        for subscriber in self.subscribers:
            for position in sorted(subscriber.tracked):
                if not subscriber.view.contains(position):
                    self.offer(subscriber, position)

    # -- always ----------------------------------------------------------------------------------------------

    @invariant()
    def counts_are_cardinalities(self) -> None:
        if not hasattr(self, "index"):
            return
        members = self.index.members
        assert members.count == sum(map(len, members.bitmaps.values()))
        assert members.ledgers == sorted(members.bitmaps)
        for subscriber in self.subscribers:
            view = subscriber.view
            assert len(view) == len(subscriber.tracked)
            for ledger_id in range(1, LEDGERS + 1):
                own = {entry_id for ledger, entry_id in subscriber.tracked if ledger == ledger_id}
                assert view.contained(ledger_id, 0, 5000) == len(own)
                assert set(view.tracked(ledger_id, 0, 5000) or ()) == own
            assert all(map(view.contains, subscriber.tracked))
            assert not any(map(view.contains, subscriber.taken))

    @invariant()
    def wakes_in_time(self) -> None:
        if not hasattr(self, "index"):
            return
        for subscriber in self.subscribers:
            self.load()
            earliest_ms = min(map(self.kept_ms, subscriber.tracked), default=None)
            found_ms = subscriber.view.next_due_ms()
            if earliest_ms is None:
                assert found_ms is None
            elif found_ms is None:
                assert self.index.next_wanted_ms() is not None, "it waits for nothing"
                assert earliest_ms > self.clock.now_ms()
            else:
                assert found_ms <= max(earliest_ms, self.clock.now_ms())
                assert found_ms > self.clock.now_ms() or subscriber.view.has_due(), "this would spin"


def members_positions(members: dict[int, BitMap]) -> list[tuple[int, int]]:
    return [(ledger_id, entry_id) for ledger_id, entry_ids in members.items() for entry_id in entry_ids]


TestAgainstDictionaries = AgainstDictionaries.TestCase
TestAgainstDictionaries.settings = settings(max_examples=PROGRAMS, stateful_step_count=40, deadline=None)
