"""A start with buckets of an earlier process: what is taken over, what is not, and that nobody waits for it.
Names in the docstrings are of Pulsar's own tests of the same.
"""

from __future__ import annotations

import logging

import pytest
import trio
from pyroaring import BitMap
from trio.testing import wait_all_tasks_blocked

from geminga.errors import NotAllowed, StorageError
from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.metadata import records
from geminga.tracker.buckets import override_store
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketWriter
from geminga.tracker.buckets.override_store import ENTRIES_MAX, KEY, OverrideStore
from geminga.tracker.buckets.recovery import unacknowledged
from geminga.tracker.format import override_format
from geminga.tracker.format.bucket_format import Directory, encode_bucket
from geminga.tracker.format.override_format import decode_overrides
from geminga.tracker.format.rows import code_of, from_columns
from geminga.tracker.format.stored_bucket import (
    KeyRange,
    StoredBucket,
    bucket_key,
    range_of_key,
    whole_ledgers,
)
from tests.tracker.bucket_world import NOW_MS, Place, World

APART = BucketSettings(indexes_min=10**6, segment_span_ms=100, segment_indexes_max=4)


def two_lives(world: World, before, after, *, recover: bool = True) -> None:
    assert world.run(before)
    world.crash("drop")
    assert world.run(after, recover=recover)


async def write_bucket(world: World, first: int, last: int, places: list[Place], *, name: bool = True) -> int:
    """A bucket that is simply there, with a due time for each place."""
    for place in places:
        world.truth.setdefault(place, NOW_MS + 100_000 + place[1])
    rows = from_columns([world.truth[p] for p in places], [code_of(*p) for p in places]).sorted()
    encoded = encode_bucket(first, last, rows, 300_000, 5000)
    async with world.store.writing() as writer:
        await writer.append([*encoded.segments, *encoded.directory])
        await writer.finish()
        writer.begin_naming()
        if name:
            await world.owner.swap({bucket_key(whole_ledgers(first, last)): writer.ledger_id}, {})
    return writer.ledger_id


# -- what is there -------------------------------------------------------------------------------------


def test_sealed_messages_are_there_again_and_others_are_not() -> None:
    """testRecoverSnapshot: what was not sealed is not contained; the rest is, and comes in order."""
    world = World(5, APART)
    sealed: list[Place] = []
    unsealed: list[Place] = []

    async def before(world: World) -> None:
        sealed.extend(await world.seal(50))
        await world.deliver(min(world.truth.values()))
        unsealed.extend(world.publish(1))

    async def after(world: World) -> None:
        assert not any(world.view.contains(place) for place in unsealed)
        left = set(sealed) - world.taken
        assert all(world.view.contains(place) for place in left)
        assert len(world.view) == len(left)
        taken = await world.deliver(world.clock.ms + 10**6)
        assert taken == sorted(left, key=lambda place: (world.truth[place], place))

    two_lives(world, before, after)


def test_what_is_due_by_now_comes_at_once_and_is_refused_when_it_is_read_again() -> None:
    """testRecoverThenExpireAddMessage, testExpiredTrackedMessageReturnsFalse, ...DecrementsCount: offered
    again past its time a message is dispatched by whoever offers it, and not a second time."""
    world = World(5, APART)

    async def before(world: World) -> None:
        await world.seal(10)
        world.clock.ms += 10_000

    async def after(world: World) -> None:
        assert len(world.view) == 20
        first = min(world.truth)
        assert not world.view.add(first, world.truth[first])  # type: ignore[arg-type]
        assert len(world.view) == 19
        assert not world.view.contains(first)
        taken = await world.deliver(world.clock.ms)
        assert set(taken) == set(world.truth) - {first}

    two_lives(world, before, after)


def test_a_bucket_of_acknowledged_messages_is_deleted() -> None:
    world = World(5, APART)

    async def before(world: World) -> None:
        world.taken |= set(await world.seal(5))
        world.rest = await world.seal(5)  # type: ignore[attr-defined]

    async def after(world: World) -> None:
        await world.settled()
        assert len(world.buckets.stored) == 1
        assert len(world.bucket_ledgers()) == 1
        assert len(world.view) == 10

    two_lives(world, before, after)


# -- what is not there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "flipped", "torn", "of other ledgers", "no bucket"])
def test_a_bad_bucket_costs_a_reread_of_its_own_ledgers(how: str) -> None:
    """In Pulsar one missing ledger sends the whole subscription back to memory, for good."""
    world = World(5, APART)
    places: list[list[Place]] = []

    async def before(world: World) -> None:
        places.extend([await world.seal(10, after_ms=200_000) for _ in range(3)])
        bad = world.buckets.stored[1]
        others = [bucket.key for bucket in world.buckets.stored if bucket is not bad]
        world.durable -= set(places[1])
        if how == "deleted":
            await world.bookie.delete_ledger(bad.ledger_id)
        elif how == "no bucket":
            await world.owner.swap({bad.key: world.topic.ledgers[-1].ledger_id}, {})
        else:
            async with world.store.writing() as writer:
                entries = [await world.store.read_segment(bad, n) for n in range(bad.directory.segments)]
                if how == "of other ledgers":
                    rows = from_columns([1], [code_of(1, 1)])
                    encoded = encode_bucket(1, 1, rows, 1, 1)
                    entries = [*encoded.segments, *encoded.directory]
                elif how == "flipped":
                    last = world.bookie.last_entry_id(bad.ledger_id)
                    (directory,) = await world.bookie.read(bad.ledger_id, last, last, bytes_max=1)
                    entries.append(directory[:-1] + bytes([directory[-1] ^ 1]))
                await writer.append(entries)
                await writer.finish()
                writer.begin_naming()
                await world.cursor.swap_properties({bad.key: writer.ledger_id}, {})
        assert set(others) < set(world.owner.properties())

    async def after(world: World) -> None:
        await world.settled()
        first, last = places[1][0][0], places[1][-1][0]
        assert (first, last) in world.rereads
        assert len(world.buckets.stored) == 2
        assert bucket_key(whole_ledgers(first, last)) not in world.owner.properties()
        assert world.bucket_ledgers() == {bucket.ledger_id for bucket in world.buckets.stored}
        assert not any(world.view.contains(place) for place in places[1])
        assert all(world.view.contains(place) for place in places[0] + places[2])
        assert world.topic.ledgers, "the topic's own ledgers are not touched"
        for place in places[1]:
            assert world.view.add(place, world.truth[place])  # type: ignore[arg-type]
        assert len(await world.deliver(world.clock.ms + 10**6)) == 60

    two_lives(world, before, after)


def test_all_buckets_lost_is_an_index_made_anew() -> None:
    """DelayedDeliveryTrackerFactoryTest: Pulsar falls back to memory, then to delivering at once. A broken
    index is made anew from the backlog, and sealed again."""
    world = World(5, APART)

    async def before(world: World) -> None:
        for _ in range(3):
            await world.seal(5, after_ms=10_000)
        for bucket in world.buckets.stored:
            world.store.unwatch(bucket.ledger_id)  # or it is noticed at once
            await world.bookie.delete_ledger(bucket.ledger_id)
        world.durable.clear()

    async def after(world: World) -> None:
        await world.settled()
        assert len(world.view) == 0
        assert len(world.rereads) == 3
        assert not world.bucket_ledgers()
        for place, time_ms in world.truth.items():
            assert world.view.add(place, time_ms)  # type: ignore[arg-type]
        world.index.feed.freeze_all()
        await world.settled()
        assert len(world.buckets.stored) == 1
        assert len(await world.deliver(world.clock.ms + 10**6)) == 30

    two_lives(world, before, after)


def test_reads_that_fail_for_a_while_are_tried_again() -> None:
    """testWithBkException, at a start."""
    world = World(5, APART)

    async def before(world: World) -> None:
        await world.seal(5)

    async def after(world: World) -> None:
        world.store.failures["open"] = 3
        await world.recover()
        assert len(world.view) == 10

    two_lives(world, before, after, recover=False)


def refusing_to_open(world: World, ledger_id: int) -> dict[str, bool]:
    """One bucket cannot be read, for no fault of its own, as long as what is returned says so."""
    switch = {"refuses": True}
    opened = world.store.open

    async def refusing(asked: int, covered: KeyRange | None = None) -> tuple[StoredBucket, Directory]:
        if asked == ledger_id and switch["refuses"]:
            raise StorageError("Too many open files")
        return await opened(asked, covered)

    world.store.open = refusing  # type: ignore[method-assign]
    return switch


@pytest.mark.parametrize("cannot_for_s", [20, 300])
def test_a_bucket_that_cannot_be_read_at_a_start_is_not_deleted(
    caplog: pytest.LogCaptureFixture, cannot_for_s: int
) -> None:
    """Its messages wait for it half a minute, and no others do; from then on the backlog is read instead."""
    world = World(5, APART)
    first: list[Place] = []

    async def before(world: World) -> None:
        first.extend(await world.seal(5))
        await world.seal(5)

    async def after(world: World) -> None:
        named = dict(world.owner.properties())
        key, ledger_id = min(named.items(), key=lambda pair: range_of_key(pair[0]))  # type: ignore[arg-type, return-value]
        switch = refusing_to_open(world, ledger_id)
        unknown, other = first[0][0], first[-1][0] + 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recover)
            await trio.sleep(10)
            assert (world.buckets.unknown.has(unknown), world.buckets.unknown.has(other)) == (True, False)
            assert (len(world.view), len(world.rereads)) == (10, 1), "the other one serves"
            await trio.sleep(cannot_for_s - 10)
            assert world.buckets.unknown.has(unknown) is (cannot_for_s < 30)
            assert world.owner.properties() == named, "neither property nor ledger is deleted"
            assert ledger_id in world.bucket_ledgers()
            if cannot_for_s > 30:
                assert range_of_key(key).ledgers in world.rereads  # type: ignore[union-attr]
                for place in first:  # as the dispatcher would, from the backlog
                    assert world.view.add(place, world.truth[place])  # type: ignore[arg-type]
            switch["refuses"] = False
            await trio.sleep(6)
            await world.settled()
        assert len(world.view) == 20
        assert (ledger_id in world.bucket_ledgers()) is (cannot_for_s < 30), "it serves, or is superseded"
        assert (key in world.owner.properties()) is (cannot_for_s < 30)
        assert sum(world.buckets.losses.by.values()) == 0
        assert len(await world.deliver(world.clock.ms + 10**6)) == 20

    with caplog.at_level(logging.WARNING, "geminga.tracker"):
        two_lives(world, before, after, recover=False)
    lines = [record.getMessage() for record in caplog.records if record.name == "geminga.tracker"]
    assert ["1 of its buckets cannot be read" in line for line in lines] == (
        [True] if cannot_for_s < 30 else [True, True, False]
    )
    assert "Too many open files" in lines[0]
    assert "their messages wait for them" in lines[0]
    if cannot_for_s > 30:
        assert "their messages are looked up in the backlog instead" in lines[1]
        assert lines[2].endswith("is superseded, and deleted")


def test_a_bucket_that_cannot_be_read_and_then_is_gone_is_lost() -> None:
    world = World(5, APART)

    async def before(world: World) -> None:
        await world.seal(5)

    async def after(world: World) -> None:
        ((_, ledger_id),) = world.owner.properties().items()
        switch = refusing_to_open(world, ledger_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recover)
            await trio.sleep(60)
            await world.store.delete(ledger_id)
            switch["refuses"] = False
            await trio.sleep(6)
        await world.settled()
        assert not world.owner.properties()
        assert world.buckets.losses.by["start"] == 1

    two_lives(world, before, after, recover=False)


# -- ranges --------------------------------------------------------------------------------------------


def test_overlapping_buckets_all_serve() -> None:
    """testOverlappingBucketsCleanupDuringRecovery: Pulsar keeps clipped ranges of deleted ledgers. What is
    read again because a bucket was lost may lie between what others have, so ranges overlap; what two of
    them have is tracked, and comes, once.
    """
    world = World(5, APART)
    ledger_ids = {}

    async def before(world: World) -> None:
        for first, last, ledgers in (
            (10, 30, (10, 20, 30)),
            (15, 18, (15,)),
            (25, 40, (25, 30, 40)),
            (50, 60, (50, 60)),
            (61, 70, (61,)),
            (65, 69, (65,)),
        ):
            places = [(ledger_id, entry_id) for ledger_id in ledgers for entry_id in range(3)]
            ledger_ids[first, last] = await write_bucket(world, first, last, places)

    async def after(world: World) -> None:
        await world.settled()
        assert world.owner.properties() == {bucket_key(whole_ledgers(*r)): n for r, n in ledger_ids.items()}
        assert world.bucket_ledgers() == set(ledger_ids.values())
        assert sorted(world.rereads) == sorted(ledger_ids)
        assert len(world.view) == len(world.truth) == 30
        assert len(await world.deliver(world.clock.ms + 10**6)) == 30
        await world.settled()
        assert not world.owner.properties()

    two_lives(world, before, after)


def test_a_damaged_bucket_takes_nothing_of_what_it_encloses() -> None:
    world = World(5, APART)

    async def before(world: World) -> None:
        await write_bucket(world, 15, 18, [(15, 0)])
        wide = await write_bucket(world, 10, 30, [(10, 0), (15, 0)])
        await world.bookie.delete_ledger(wide)

    async def after(world: World) -> None:
        await world.settled()
        assert [(b.start_ledger, b.end_ledger) for b in world.buckets.stored] == [(15, 18)]
        assert world.buckets.losses.by == {"start": 1, "load": 0, "verify": 0, "told": 0}

    two_lives(world, before, after)


def test_a_bucket_with_messages_beyond_its_name_is_lost() -> None:
    world = World(5, APART)

    async def before(world: World) -> None:
        places = [(15, 4), (15, 5), (15, 6)]
        ledger_id = await write_bucket(world, 15, 15, places, name=False)
        covered = KeyRange(code_of(15, 4), code_of(15, 5))
        await world.cursor.swap_properties({bucket_key(covered): ledger_id}, {})

    async def after(world: World) -> None:
        await world.settled()
        assert not world.buckets.stored
        assert world.rereads == [(15, 15)]
        assert len(world.view) == 0

    two_lives(world, before, after)


def test_properties_that_name_no_bucket_are_removed() -> None:
    world = World(5, APART)
    odd = {"#pulsar.internal.delayed.bucket_7": 7, "#pulsar.internal.delayed.bucket_9_8": 3}

    async def before(world: World) -> None:
        await world.seal(5)
        await world.owner.swap({**odd, "mine": 5}, {})

    async def after(world: World) -> None:
        await world.settled()
        assert len(world.owner.properties()) == 1
        assert world.cursor.properties["mine"] == 5
        assert len(world.view) == 10

    two_lives(world, before, after)


# -- beside the dispatch path --------------------------------------------------------------------------


def test_ledgers_are_unknown_until_their_bucket_was_read() -> None:
    """In Pulsar dispatch waits for recovery, up to five minutes."""
    world = World(5, APART)
    places: list[list[Place]] = []

    async def before(world: World) -> None:
        places.extend([await world.seal(5) for _ in range(2)])

    async def after(world: World) -> None:
        slow = trio.Event()
        opened = world.store.open
        first, _ = world.buckets.named().values()

        async def opening(ledger_id: int, covered: KeyRange):
            if ledger_id == first:
                await slow.wait()
            return await opened(ledger_id, covered)

        world.store.open = opening  # type: ignore[method-assign]
        recovery = world.recovery
        ledgers = [[ledger_id for ledger_id, _ in bucket] for bucket in places]
        assert all(world.buckets.unknown.has(ledger_id) for ledger_id in ledgers[0] + ledgers[1])
        assert not world.buckets.unknown.has(ledgers[1][-1] + 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recovery.run)
            await trio.testing.wait_all_tasks_blocked()
            assert all(world.buckets.unknown.has(ledger_id) for ledger_id in ledgers[0])
            assert not any(world.buckets.unknown.has(ledger_id) for ledger_id in ledgers[1])
            assert world.rereads == [(ledgers[1][0], ledgers[1][-1])]
            assert len(world.view) == 10
            slow.set()
        assert not any(world.buckets.unknown.has(ledger_id) for ledger_id in ledgers[0])
        assert len(world.view) == 20

    two_lives(world, before, after, recover=False)


def test_a_clear_during_recovery_is_not_undone() -> None:
    world = World(5, APART)

    async def before(world: World) -> None:
        await world.seal(5)

    async def after(world: World) -> None:
        go_on = trio.Event()
        opened = world.store.open

        async def opening(ledger_id: int, covered: KeyRange):
            found = await opened(ledger_id, covered)
            await go_on.wait()
            return found

        world.store.open = opening  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.recovery.run)
            await trio.testing.wait_all_tasks_blocked()
            world.index.clear()
            await world.buckets.clear()
            go_on.set()
        await world.settled()
        assert len(world.view) == 0
        assert not world.buckets.stored
        assert not world.bucket_ledgers()

    two_lives(world, before, after, recover=False)


# -- what is wanted ------------------------------------------------------------------------------------


def test_what_some_cursor_has_not_acknowledged_is_wanted() -> None:
    chain = LedgerChain()
    for ledger_id in (1, 2, 3):
        chain.append(ChainLedger(ledger_id, 10, 100, 1))
    one, other = Acknowledgments(chain, (1, -1)), Acknowledgments(chain, (1, -1))
    one.acknowledge_cumulative((2, 4))
    one.acknowledge([(2, 6), (3, 0)])
    members = {1: BitMap([1, 2]), 2: BitMap([3, 4, 5, 6]), 3: BitMap([0, 1])}
    assert unacknowledged([one], members) == {2: BitMap([5]), 3: BitMap([1])}
    other.acknowledge_cumulative((1, 9))
    assert unacknowledged([one, other], members) == {2: BitMap([3, 4, 5, 6]), 3: BitMap([0, 1])}
    assert members[2] == BitMap([3, 4, 5, 6]), "not changed"
    assert unacknowledged([], members) == {}


# -- changed due times ---------------------------------------------------------------------------------


def test_changed_due_times_survive() -> None:
    world = World(5, APART)
    other, third = code_of(7, 2), code_of(8, 0)

    async def before(world: World) -> None:
        overrides = OverrideStore(world.store, world.owner)
        assert await overrides.read() == {}
        await overrides.write({code_of(7, 1): 500, other: 600})
        first = world.owner.properties()[KEY]
        await overrides.write({other: 700})
        await overrides.write({third: 800})
        await overrides.write({third: -1})
        assert world.owner.properties()[KEY] == first
        for number in range(ENTRIES_MAX):
            await overrides.write({other: 1000 + number})
        assert world.owner.properties()[KEY] != first, "it goes on in a new ledger"
        assert world.bucket_ledgers() == {world.owner.properties()[KEY]}

    async def after(world: World) -> None:
        overrides = OverrideStore(world.store, world.owner)
        assert await overrides.read() == {code_of(7, 1): 500, other: 1000 + ENTRIES_MAX - 1}
        overrides.forget([other])
        await overrides.write({third: 900})
        assert await OverrideStore(world.store, world.owner).read() == {code_of(7, 1): 500, third: 900}
        with pytest.raises(NotAllowed):
            await overrides.write(dict.fromkeys(range(100_001), 5))
        await overrides.clear()
        assert KEY not in world.owner.properties()
        assert not world.bucket_ledgers()
        assert await OverrideStore(world.store, world.owner).read() == {}

    two_lives(world, before, after)


class Entries:
    """The entries that are begun, as changes. The first waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refused: int = -1) -> None:
        self.begun: list[dict[int, int]] = []
        self.may_go_on = trio.Event()
        append = BucketWriter.append

        async def begin(writer: BucketWriter, entries: list[bytes]) -> None:
            number = len(self.begun)
            self.begun.extend(decode_overrides(entry) for entry in entries)
            if number == 0:
                await self.may_go_on.wait()
            if number == refused:
                raise StorageError("planted")
            await append(writer, entries)

        monkeypatch.setattr(BucketWriter, "append", begin)


def test_changes_of_many_tasks_share_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had an entry and a sync of its own. One that fails fails all of its changes; none comes later."""
    world = World(5, APART)
    others = {code: 10 + code for code in range(10)}

    async def before(world: World) -> None:
        overrides = OverrideStore(world.store, world.owner)
        await overrides.write({100: 1})
        entries = Entries(monkeypatch, refused=1)
        refused: list[int] = []

        async def change(code: int) -> None:
            try:
                await overrides.write({code: others[code]})
            except StorageError:
                refused.append(code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(overrides.write, {101: 2})
            await wait_all_tasks_blocked()
            for code in others:
                nursery.start_soon(change, code)
            await wait_all_tasks_blocked()
            entries.may_go_on.set()
        assert entries.begun == [{101: 2}, others]
        assert sorted(refused) == list(others)
        await overrides.write({102: 3})

    async def after(world: World) -> None:
        assert await OverrideStore(world.store, world.owner).read() == {100: 1, 101: 2, 102: 3}

    two_lives(world, before, after)


def test_a_cancelled_change_leaves_its_entry_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(5, APART)
    changes = {code: 10 + code for code in range(4)}

    async def before(world: World) -> None:
        overrides = OverrideStore(world.store, world.owner)
        await overrides.write({100: 1})
        entries = Entries(monkeypatch)
        scopes: list[trio.CancelScope] = []

        async def change(code: int) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await overrides.write({code: changes[code]})

        async with trio.open_nursery() as nursery:
            for code in changes:
                nursery.start_soon(change, code)
            await wait_all_tasks_blocked()
            scopes[0].cancel()
        assert entries.begun == [changes, changes]
        assert [scope.cancelled_caught for scope in scopes] == [True, False, False, False]

    async def after(world: World) -> None:
        assert await OverrideStore(world.store, world.owner).read() == {100: 1} | changes

    two_lives(world, before, after)


def test_changes_that_share_an_entry_keep_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was being written was not counted. A new ledger could not begin with more than the limit: an
    assertion failed in place of the refusal.
    """
    monkeypatch.setattr(override_store, "OVERRIDES_MAX", 3)
    monkeypatch.setattr(override_format, "OVERRIDES_MAX", 3)
    world = World(5, APART)

    async def before(world: World) -> None:
        overrides = OverrideStore(world.store, world.owner)
        await overrides.write({100: 1})
        entries = Entries(monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(overrides.write, {101: 2})
            await wait_all_tasks_blocked()
            nursery.start_soon(overrides.write, {102: 3})
            await wait_all_tasks_blocked()
            with pytest.raises(NotAllowed):
                await overrides.write({103: 4})
            entries.may_go_on.set()
        overrides.forget([100])
        await overrides.write({103: 4})

    async def after(world: World) -> None:
        assert await OverrideStore(world.store, world.owner).read() == {100: 1, 101: 2, 102: 3, 103: 4}

    two_lives(world, before, after)


def test_a_change_that_was_given_up_does_not_come_with_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task was cancelled while it waited, so the next change wrote it, however much later that came."""
    world = World(5, APART)

    async def before(world: World) -> None:
        overrides = OverrideStore(world.store, world.owner)
        await overrides.write({100: 1})
        entries = Entries(monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(overrides.write, {101: 2})
            await wait_all_tasks_blocked()
            with trio.move_on_after(0):
                await overrides.write({102: 3})
            entries.may_go_on.set()
        await overrides.write({103: 4})
        assert entries.begun == [{101: 2}, {103: 4}]

    async def after(world: World) -> None:
        assert await OverrideStore(world.store, world.owner).read() == {100: 1, 101: 2, 103: 4}

    two_lives(world, before, after)


def test_a_crash_at_every_operation_while_due_times_are_changed() -> None:
    """A change is there once the call has returned, and either way if it has not."""

    async def changing(world: World) -> None:
        world.told = {}  # type: ignore[attr-defined]
        overrides = OverrideStore(world.store, world.owner)
        await overrides.read()
        for number in range(3):
            await overrides.write({number: 10 + number})
            world.told[number] = 10 + number  # type: ignore[attr-defined]

    async def look(world: World) -> None:
        named = set(world.owner.properties().values())
        assert world.bucket_ledgers() == named
        found = await OverrideStore(world.store, world.owner).read()
        told = getattr(world, "told", {})
        assert told.items() <= found.items() <= {0: 10, 1: 11, 2: 12}.items()

    world = World(5, APART)
    assert world.run(changing)
    last = world.disk.operations
    for at in range(last):
        world = World(5, APART)
        world.disk.crash_at = at
        assert not world.run(changing)
        world.crash(("drop", "keep", "torn")[at % 3])  # type: ignore[arg-type]
        assert world.run(look)


def test_records_of_ledgers_say_whose_they_are() -> None:
    world = World(5, APART)

    async def script(world: World) -> None:
        await world.seal(5)
        (bucket,) = world.buckets.stored
        stored = world.metadata.get(records.ledger_path(bucket.ledger_id))
        assert stored is not None
        record = records.decode(records.LedgerRecord, stored.value, "")
        assert (record.purpose, record.topic) == ("bucket", world.topic.storage.path)

    assert world.run(script)
