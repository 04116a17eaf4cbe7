"""Power cuts at every step of the writer: what was acknowledged is there, the rest is there whole or not at
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geminga.errors import BadVersion, KeyMissing, StorageError
from geminga.metadata.group_commit import Request, Write
from geminga.metadata.store import Delete, MetadataStore, Put, Stored
from simulation.disk.sim_key_value import SimKeyValue, SimulatedCrash

PATHS = ["/a", "/a/b", "/c", "/d"]
State = dict[str, Stored]


class Operation(NamedTuple):
    puts: list[Put]
    deletes: list[Delete]


class Crasher:
    """Cuts the power at the n-th step (a write or a sync) of a key-value store."""

    def __init__(self, key_value: SimKeyValue, at_step: int) -> None:
        self.left = at_step
        key_value.before_write = key_value.before_sync = self.step

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise SimulatedCrash


class Life:
    """One process: runs bursts of concurrent operations until a crash, and notes what it was told."""

    def __init__(self, key_value: SimKeyValue) -> None:
        self.store = MetadataStore(key_value, threaded=False)
        self.queued: list[list[Write]] = []
        self.acknowledged = 0
        enqueue = self.store._writer.enqueue

        def noted(writes: list[Write]) -> Request:
            request = enqueue(writes)
            self.queued.append(writes)
            return request

        self.store._writer.enqueue = noted  # type: ignore[method-assign]

    async def operate(self, operation: Operation) -> None:
        try:
            versions = await self.store.transact(*operation)
        except (BadVersion, KeyMissing, StorageError):
            return
        assert len(versions) == len(operation.puts)
        self.acknowledged += 1

    async def run(self, bursts: Sequence[Sequence[Operation]]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.store.run)
                for burst in bursts:
                    async with trio.open_nursery() as callers:
                        for operation in burst:
                            callers.start_soon(self.operate, operation)
                nursery.cancel_scope.cancel()
        except* SimulatedCrash:
            pass


def state_of(key_value: SimKeyValue) -> State:
    store = MetadataStore(key_value)
    state = {path: stored for path in PATHS if (stored := store.get(path)) is not None}
    assert store.children("/") == sorted(path[1:] for path in state if path.count("/") == 1)
    assert store.children("/a") == (["b"] if "/a/b" in state else [])
    return state


def apply(state: State, writes: list[Write]) -> State:
    after = dict(state)
    for write in writes:
        if write.after is None:
            del after[write.path]
        else:
            after[write.path] = write.after
    return after


_versions = st.none() | st.integers(-1, 2)
_deletes = st.builds(Delete, st.sampled_from(PATHS), st.none() | st.integers(0, 2))
_puts = st.builds(Put, st.sampled_from(PATHS), st.binary(max_size=3), _versions)
_operations = (
    st.tuples(st.lists(_puts, max_size=3), st.lists(_deletes, max_size=2))
    .filter(lambda pair: pair[0] or pair[1])
    .filter(lambda pair: len({change.path for change in (*pair[0], *pair[1])}) == len(pair[0]) + len(pair[1]))
    .map(lambda pair: Operation(*pair))
)
_lives = st.tuples(st.lists(st.lists(_operations, min_size=1, max_size=5), max_size=5), st.integers(0, 12))


@settings(max_examples=150, deadline=None)
@given(st.lists(_lives, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@example([([[Operation([Put("/a", b"1")], [])], [Operation([Put("/a", b"2")], [])]], 3)], 0)
def test_power_cuts(lives: list[tuple[list[list[Operation]], int]], seed: int) -> None:
    key_value = SimKeyValue(seed)
    for bursts, crash_at_step in lives:
        before = state_of(key_value)
        Crasher(key_value, crash_at_step)
        life = Life(key_value)
        trio.run(life.run, bursts)
        key_value = key_value.crash()
        found = state_of(key_value)
        # Requests are applied in the order they were queued and acknowledged in that order, so what is found
        # must be what some number of them leaves, and at least the acknowledged ones.
        possible = [before]
        for writes in life.queued:
            possible.append(apply(possible[-1], writes))
        assert found in possible[life.acknowledged :]
