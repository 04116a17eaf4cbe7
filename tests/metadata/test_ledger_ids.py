"""Ledger ids: rising, never given twice, whatever is cut or cancelled."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.errors import BadVersion, StorageError
from geminga.metadata.ledger_ids import FIRST_LEDGER_ID, LedgerIds
from geminga.metadata.store import MetadataStore
from simulation.disk.sim_key_value import SimKeyValue, SimulatedCrash


async def test_one_sync_pays_for_a_block() -> None:
    store = MetadataStore(SimKeyValue(), threaded=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        ids = LedgerIds(store, block_size=10)
        assert [await ids.next() for _ in range(25)] == list(range(FIRST_LEDGER_ID, FIRST_LEDGER_ID + 25))
        assert store.statistics().groups == 3
        assert await LedgerIds(store, block_size=10).next() == FIRST_LEDGER_ID + 30
        nursery.cancel_scope.cancel()


async def test_two_takers_of_one_store_share_nothing() -> None:
    store = MetadataStore(SimKeyValue(), threaded=False)
    taken: list[int] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        takers = [LedgerIds(store, block_size=3) for _ in range(3)]

        async def take(ids: LedgerIds) -> None:
            for _ in range(10):
                taken.append(await ids.next())  # noqa: PERF401

        async with trio.open_nursery() as callers:
            for ids in takers * 2:
                callers.start_soon(take, ids)
        nursery.cancel_scope.cancel()
    assert len(taken) == len(set(taken)) == 60


async def test_a_cancelled_call_wastes_a_block_at_most() -> None:
    store = MetadataStore(SimKeyValue(), threaded=False)
    async with trio.open_nursery() as nursery:
        ids = LedgerIds(store, block_size=10)
        with trio.move_on_after(0):
            await ids.next()
        async with trio.open_nursery() as callers:
            callers.start_soon(ids.next)
            await trio.testing.wait_all_tasks_blocked()
            callers.cancel_scope.cancel()
        await nursery.start(store.run)
        assert await ids.next() == FIRST_LEDGER_ID + 10
        nursery.cancel_scope.cancel()


class Contended(MetadataStore):
    """Another writer is always faster."""

    tries = 0

    async def put(self, path: str, value: bytes, *expected: object, **flags: object) -> int:
        self.tries += 1
        raise BadVersion(path)


async def test_a_store_that_refuses_for_ever_does_not_hold_the_caller() -> None:
    store = Contended(SimKeyValue(), threaded=False)
    with pytest.raises(StorageError, match="ledger-ids?: 100 times another writer took the next ids"):
        await LedgerIds(store).next()
    assert store.tries == 100


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_never_twice_across_power_cuts(lives: list[tuple[int, int, int]], seed: int) -> None:
    key_value = SimKeyValue(seed)
    given_out: list[int] = []
    for tasks, calls, crash_at_step in lives:
        left = crash_at_step

        def step() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise SimulatedCrash

        async def take(ids: LedgerIds, calls: int) -> None:
            try:
                for _ in range(calls):
                    given_out.append(await ids.next())  # noqa: PERF401
            except StorageError:
                pass

        async def live(key_value: SimKeyValue, tasks: int, calls: int) -> None:
            store = MetadataStore(key_value, threaded=False)
            ids = LedgerIds(store, block_size=4)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(store.run)
                    async with trio.open_nursery() as callers:
                        for _ in range(tasks):
                            callers.start_soon(take, ids, calls)
                    nursery.cancel_scope.cancel()
            except* SimulatedCrash:
                pass

        key_value.before_write = key_value.before_sync = step
        trio.run(live, key_value, tasks, calls)
        key_value = key_value.crash()
    assert len(given_out) == len(set(given_out))
    assert given_out == sorted(given_out)
