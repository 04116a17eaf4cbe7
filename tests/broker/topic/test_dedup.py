"""Sequence ids against a plain log: nothing twice, nothing lost, whatever fails, whenever it all ends."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.broker.topic.dedup import NEVER, SequenceIds, Verdict, name_of, property_of

NAMES = ("p", "q", "#pulsar.internal.delayed.bucket_1_2")
HOUR_MS = 3_600_000


class World:
    """A topic of which only sequence ids are stored, its producers, and the broker that dies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[tuple[str, int, int]] = []
        """(name, first id, last id) of each durable entry."""
        self.pending: list[tuple[str, int, int]] = []
        self.snapshots: list[tuple[dict[str, int], int]] = [({}, 0)]
        """Properties, and how many entries of the log they stand for."""
        self.mark_delete = 0
        self.unconfirmed: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
        self.next_id = dict.fromkeys(NAMES, 0)
        self.ids = self.new_ids()

    def new_ids(self) -> SequenceIds:
        return SequenceIds(100, lambda: NAMES, lambda: 0)

    def publish(self, name: str, count: int) -> None:
        first = self.next_id[name]
        self.next_id[name] = first + count
        self.unconfirmed[name].append((first, first + count - 1))
        self.send(name, first, first + count - 1)

    def send(self, name: str, first: int, last: int) -> None:
        verdict = self.ids.judge(name, first)
        stored, waits = (name, first, last) in self.log, (name, first, last) in self.pending
        expected = Verdict.DUPLICATE if stored else Verdict.UNDECIDED if waits else Verdict.NEW
        assert verdict is expected
        if verdict is Verdict.NEW:
            self.pending.append((name, first, last))
            self.ids.pushed(name, last)
        elif verdict is Verdict.DUPLICATE and (first, last) in self.unconfirmed[name]:
            self.unconfirmed[name].remove((first, last))

    def send_again(self, name: str) -> None:
        for first, last in list(self.unconfirmed[name]):
            self.send(name, first, last)

    def confirm(self, count: int, *, receipts: bool) -> None:
        for name, first, last in self.pending[:count]:
            self.log.append((name, first, last))
            self.ids.persisted(name, last)
            if receipts and (first, last) in self.unconfirmed[name]:
                self.unconfirmed[name].remove((first, last))
        del self.pending[:count]

    def fail(self, left: int) -> None:
        """All but the first `left` pending entries fail, and their producers come anew."""
        failed = self.pending[left:]
        del self.pending[left:]
        for name in {name for name, _, _ in failed}:
            self.ids.failed(name, [last for other, _, last in self.pending if other == name])
        for name in NAMES:
            self.send_again(name)

    def snapshot(self, *, moves: bool) -> None:
        self.snapshots.append((self.ids.snapshot(), len(self.log)))
        if moves:
            self.mark_delete = len(self.log)

    def crash(self, durable: int) -> None:
        """Of what was on its way some entries are on disk, though nobody was told."""
        self.log += self.pending[:durable]
        self.pending = []
        self.ids = self.new_ids()
        properties, _ = self.snapshots[-1]
        self.ids.restore(properties)
        for name, _, last in self.log[self.mark_delete :]:
            self.ids.persisted(name, last)
        for name in NAMES:
            self.send_again(name)


STEP = st.tuples(st.integers(0, 9), st.sampled_from(NAMES), st.integers(0, 4), st.booleans())


@settings(max_examples=300)
@given(st.lists(STEP, max_size=40))
def test_each_message_is_stored_once_whatever_happens(steps: list[tuple[int, str, int, bool]]) -> None:
    world = World(0)
    for kind, name, count, flag in steps:
        if kind < 4:
            world.publish(name, count + 1)
        elif kind < 6:
            world.confirm(count, receipts=flag)
        elif kind == 6:
            world.fail(count)
        elif kind == 7:
            world.snapshot(moves=flag)
        elif kind == 8:
            world.crash(min(count, len(world.pending)))
        else:
            world.send_again(name)
    world.confirm(len(world.pending), receipts=True)
    for name in NAMES:
        world.send_again(name)
        assert world.ids.last_pushed(name) == world.next_id[name] - 1
    assert not world.pending
    for name in NAMES:
        stored = [(first, last) for other, first, last in world.log if other == name]
        assert stored == sorted(set(stored))
        assert [first for first, _ in stored] == [0, *(last + 1 for _, last in stored)][: len(stored)]
        assert sum(last + 1 - first for first, last in stored) == world.next_id[name]


def test_absent_producers_are_forgotten_and_connected_ones_are_not() -> None:
    now = [0]
    ids = SequenceIds(100, lambda: ("here",), lambda: now[0])
    for name in ("here", "gone", "busy"):
        ids.pushed(name, 7)
        ids.persisted(name, 7)
    ids.pushed("busy", 8)
    now[0] = HOUR_MS
    assert ids.forget_inactive(HOUR_MS) == 0
    now[0] += 1
    assert ids.forget_inactive(HOUR_MS) == 1
    assert [ids.last_pushed(name) for name in ("here", "gone", "busy")] == [7, NEVER, 8]


def test_no_more_names_than_allowed_are_kept_and_written_down() -> None:
    now = [0]
    ids = SequenceIds(10, lambda: ("p0",), lambda: now[0])
    for number in range(1000):
        now[0] = number
        ids.persisted(f"p{number}", number)
        assert len(ids) <= 20
    kept = ids.snapshot()
    assert kept == {"p0": 0} | {f"p{number}": number for number in range(991, 1000)}
    ids.forget_inactive(10**9)
    assert len(ids) == 10


def test_names_that_look_like_the_brokers_own_properties_do_not_become_them() -> None:
    for name in ("p", "#p", "##", "#pulsar.internal.delayed.bucket_1_2"):
        assert not property_of(name).startswith("#pulsar")
        assert name_of(property_of(name)) == name
