"""The power goes at every operation of the disk, or one of them fails: each delayed message is in a sealed
bucket or in the backlog afterwards, no name is without its ledger, and no ledger without its name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest
import trio

from geminga.errors import StorageError
from simulation.disk.sim_disk import CrashMode
from tests.budget import budget
from tests.tracker.bucket_world import Place, World

MODES: tuple[CrashMode, ...] = ("drop", "keep", "torn")
STRIDE = budget(day=11, night=1)
Script = Callable[[World], Awaitable[None]]


async def sealing(world: World) -> None:
    for _ in range(2):
        await world.seal(5)


async def merging(world: World) -> None:
    for _ in range(5):
        await world.seal(4)


async def delivering(world: World) -> None:
    """Segments are loaded, buckets exhausted and deleted, others merged with half of their rows gone."""
    for _ in range(4):
        await world.seal(5)
        await world.deliver(world.clock.ms + 300)
    await world.deliver(world.clock.ms + 1000)
    await world.settled()


async def restarting(world: World) -> None:
    """Nothing but a start, on what was left by `before`."""
    await world.settled()


SCRIPTS: dict[str, tuple[Script, bool]] = {
    "sealing": (sealing, False),
    "merging": (merging, False),
    "delivering": (delivering, False),
    "recovering": (restarting, False),
    "a topic's own": (merging, True),
}


def prepared(name: str) -> tuple[World, Script]:
    script, is_shared = SCRIPTS[name]
    world = World(3, is_shared=is_shared)
    if name == "recovering":
        assert world.run(merging)
        world.crash("drop")
    return world, script


def operations_of(name: str) -> tuple[int, int]:
    world, script = prepared(name)
    first = world.disk.operations
    assert world.run(script)
    return first, world.disk.operations


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_at_every_operation(name: str) -> None:
    first, last = operations_of(name)
    points = 0
    for at in range(first, last):
        if at % STRIDE != first % STRIDE:
            continue
        for mode in MODES if STRIDE == 1 else (MODES[at // STRIDE % 3],):
            world, script = prepared(name)
            world.disk.crash_at = at
            assert not world.run(script), f"operation {at} was not reached"
            world.crash(mode)
            points += 1
            try:
                world.check()
            except BaseException as error:
                error.add_note(f"crash {mode} at operation {at} of {name}\n{world.disk.story()}")
                raise
    print(f"{name}: {points} of {last - first} crash points")


def fail_from(world: World, at: int, paths: tuple[str, ...]) -> None:
    """The disk's n-th operation fails, and all after it; or of them only those of some files."""

    def fail(kind: str, path: str) -> None:
        if world.disk.operations >= at and path.startswith(paths):
            raise StorageError(f"{path}: simulated failure of {kind}")

    world.disk.inject = fail


@pytest.mark.parametrize("paths", [("",), ("tree",), ("index", "bookie")], ids=["all", "metadata", "bookie"])
@pytest.mark.parametrize("name", ["merging", "delivering"])
def test_the_nth_write_fails(name: str, paths: tuple[str, ...]) -> None:
    """The bookie or the metadata ends with it, and the process; a restart finds everything."""
    first, last = operations_of(name)
    for at in range(first, last):
        if at % STRIDE != (first + 3) % STRIDE:
            continue
        world, script = prepared(name)
        fail_from(world, at, paths)
        world.run(script)
        world.crash(MODES[at % 3])
        try:
            world.check()
        except BaseException as error:
            error.add_note(f"operation {at} of {name} failed\n{world.disk.story()}")
            raise


class Clearing:
    """`gone`: what was published before the clear, once that has returned."""

    def __init__(self) -> None:
        self.gone: set[Place] = set()

    async def __call__(self, world: World) -> None:
        await world.seal(5)
        await world.seal(5)
        world.publish(5)
        world.index.feed.freeze_all()  # on its way when all is cleared
        await trio.lowlevel.checkpoint()
        before = set(world.truth)
        world.taken |= before  # a seek or skip is durable in the cursor before the index is cleared
        world.durable.clear()
        world.index.clear()
        await world.buckets.clear()
        self.gone = before
        await world.settled()
        await world.seal(3)


def test_a_crash_while_all_is_cleared() -> None:
    """Pulsar's testClear, testLateSnapshotLengthUpdateAfterClear: whatever was on its way stays away."""
    world = World(3)
    assert world.run(Clearing())
    last = world.disk.operations
    for at in range(3, last, STRIDE):
        world = World(3)
        world.disk.crash_at = at
        script = Clearing()
        assert not world.run(script)
        world.crash(MODES[at // STRIDE % 3])
        try:
            world.check(gone=script.gone)
        except BaseException as error:
            error.add_note(f"crash at operation {at}\n{world.disk.story()}")
            raise


def test_a_name_that_may_be_on_disk_keeps_its_ledger() -> None:
    """The write of the property fails after its bytes were written: a restart may find it, and then it has to
    name a bucket."""
    world = World(3)

    async def script(world: World) -> None:
        swap = world.owner.swap

        async def swapping(add: Mapping[str, int], remove: Mapping[str, int]) -> None:
            def fail(kind: str, path: str) -> None:
                if (kind, path) == ("sync", "tree"):
                    raise StorageError("simulated failure of sync")

            world.disk.inject = fail
            await swap(add, remove)

        world.owner.swap = swapping  # type: ignore[method-assign]
        world.publish(5)
        world.index.feed.freeze_all()
        await trio.sleep(10)

    assert not world.run(script)
    world.disk.inject = None
    world.disk.crash("keep")
    world.index_rows = world._hooked(world.index_rows.crash(world.index_rows.unsynced), "index")
    world.tree = world._hooked(world.tree.crash(world.tree.unsynced), "tree")
    named = []

    async def look(world: World) -> None:
        named.extend(world.buckets.named())

    assert world.run(look, recover=False)
    assert named, "the property was on disk"
    world.check()
