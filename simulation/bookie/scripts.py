"""What the bookie is made to do in the campaign: fixed scripts, and lives drawn by seed.

A script is a coroutine on a `BookieWorld`. The fixed ones are short, so that the power can go at each of
their operations in turn; together they take every path to the disk.
"""

from __future__ import annotations

import random
from typing import Final

import trio

from geminga.bookie.running.bookie import Bookie
from simulation.bookie.world import BookieWorld, Script


async def trickle(world: BookieWorld) -> None:
    """One entry at a time, a flush in the middle, a restart, more."""
    async with world.running() as bookie:
        world.create(bookie, 1)
        for _ in range(6):
            await world.add(bookie, 1)
        await bookie.flush()
        await world.add(bookie, 1, count=3)
        await world.read_back(bookie, 1)
    async with world.running(close=False) as bookie:
        world.create(bookie, 2)
        await world.add(bookie, 2, count=3)
        await world.read_back(bookie, 1)


async def bursts(world: BookieWorld) -> None:
    """Several ledgers at once through rolling journals, both caches and several entry logs."""
    async with world.running(close=False) as bookie:
        for ledger_id in (3, 1, 2):
            world.create(bookie, ledger_id)
        for size in (40, 200, 600, 10, 150):
            await world.add(bookie, 1, 2, 3, count=4, size=size)
        await world.read_back(bookie, 2)


async def deletions(world: BookieWorld) -> None:
    """Ledgers go away before, while and after they are flushed; so do the logs that held them."""
    async with world.running(close=False) as bookie:
        for ledger_id in (1, 2, 3):
            world.create(bookie, ledger_id)
        await world.add(bookie, 1, 2, count=6, size=300)
        await bookie.flush()
        await world.add(bookie, 1, 2, 3, count=2)
        await world.delete(bookie, 1)
        await world.add(bookie, 2, count=3, size=300)
        await bookie.flush()
        await world.delete(bookie, 2)
        await world.add(bookie, 3, count=2)
        await bookie.flush()
        await bookie.flush()


async def fences(world: BookieWorld) -> None:
    """Fenced and closed ledgers, an empty one among them, and restarts of both kinds between them."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1, count=4)
        await world.fence(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 2, count=2)
    async with world.running() as bookie:
        await world.fence(bookie, 2)
        world.create(bookie, 4)
        await world.fence(bookie, 4)
    async with world.running(close=False) as bookie:
        world.create(bookie, 5)
        await world.add(bookie, 5, count=2, size=700)


async def large(world: BookieWorld) -> None:
    """Entries larger than a journal group, a cache half and an entry log; and empty ones."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 1, size=5000)
        await world.add(bookie, 1, 2, count=2, size=1700)
        await world.add(bookie, 2, count=3, size=0)
        await world.add(bookie, 1, size=6000)


async def overlaps(world: BookieWorld) -> None:
    """Deletions and additions at every moment of a flush that is under way."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        for delay in range(7):
            ledger_id = 10 + delay
            world.create(bookie, ledger_id)
            await world.add(bookie, 1, ledger_id, count=2, size=50)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bookie.flush)
                for _ in range(delay):
                    await trio.lowlevel.checkpoint()
                await world.add(bookie, ledger_id, 1, size=50)
                await world.delete(bookie, ledger_id)


async def recycled(world: BookieWorld) -> None:
    """Journals written over with shorter groups than they held before, and left for the next."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        for size in (1200, 30):
            for _ in range(5):
                await world.add(bookie, 1, count=2, size=size)
                await bookie.flush()


async def restarts(world: BookieWorld) -> None:
    """Life after life that each ends without a word, so that each start has something to replay."""
    for life in range(5):
        async with world.running(close=life == 3) as bookie:
            for ledger_id in list(world.ledgers):
                await world.read_back(bookie, ledger_id)
            world.create(bookie, life)
            await world.add(bookie, life, count=2 + life, size=200)


async def crowd(world: BookieWorld) -> None:
    """Many ledgers with one small entry each, then all of them again: index rows of one entry."""
    async with world.running() as bookie:
        for ledger_id in range(20, 8, -1):
            world.create(bookie, ledger_id)
        for size in (1, 120):
            await world.add(bookie, *range(9, 21), size=size)
            await bookie.flush()


async def slow(world: BookieWorld) -> None:
    """Syncs that take long: entries arrive while caches are flushed, until there is no room."""
    delays = random.Random(world.seed)
    world.disk.faults.sync_s = lambda: delays.choice((0.0, 0.5, 20.0))
    async with world.running(close=False) as bookie:
        for ledger_id in (1, 2):
            world.create(bookie, ledger_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pour, world, bookie, 1)
            nursery.start_soon(_pour, world, bookie, 2)
            await bookie.flush()
        await world.read_back(bookie, 1)


async def _pour(world: BookieWorld, bookie: Bookie, ledger_id: int) -> None:
    for size in (100, 900, 20, 1400, 300):
        await world.add(bookie, ledger_id, count=3, size=size)


async def torn_start(world: BookieWorld) -> None:
    """A crash in the middle: what is left of the first life is replayed by the second, which writes on."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 1, 2, count=5, size=250)
        await bookie.flush()
        await world.add(bookie, 2, 1, count=3, size=40)
        await world.delete(bookie, 1)
    world.forget_writers()
    cut = world.disk.crash_at
    world.crash("torn")
    world.disk.crash_at = cut
    async with world.running() as bookie:
        await world.read_back(bookie, 2)
        await world.fence(bookie, 2)
        world.create(bookie, 3)
        await world.add(bookie, 3, count=6, size=250)


async def compactions(world: BookieWorld) -> None:
    """Living entries move to other logs, also while ledgers grow and go away, and after a restart."""
    async with world.running(close=False) as bookie:
        ids = list(range(1, 7))
        for ledger_id in ids:
            world.create(bookie, ledger_id)
        for size in (150, 210):
            await world.add(bookie, *ids, count=3, size=size)
            await bookie.flush()
        await world.drop(bookie, 2, 4, 6)
        await bookie.compact(0.9)
        for ledger_id in (1, 3, 5):
            await world.read_back(bookie, ledger_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.delete, bookie, 1)
            nursery.start_soon(bookie.compact, 1.0)
            nursery.start_soon(bookie.flush)
            await world.add(bookie, 3, 5, count=2, size=300)
    async with world.running() as bookie:
        await world.drop(bookie, 5)
        await bookie.compact(0.9)
        world.create(bookie, 7)
        await world.add(bookie, 7, count=2)
        await world.read_back(bookie, 3)


SCRIPTS: Final[dict[str, Script]] = {
    script.__name__: script
    for script in (
        trickle,
        bursts,
        deletions,
        fences,
        large,
        overlaps,
        recycled,
        restarts,
        crowd,
        slow,
        torn_start,
        compactions,
    )
}

SIZES = (0, 5, 40, 90, 200, 600, 1700, 5000)
ACTIONS = (
    "create",
    "add",
    "add",
    "add",
    "spread",
    "flush",
    "overlap",
    "delete",
    "fence",
    "read",
    "idle",
    "compact",
    "drop",
)
LEDGERS_MAX = 8


def random_life(chance: random.Random) -> Script:
    """One life: some kinds of actions often, some never, as this life has it; its end in order or not."""
    weights = [chance.choice((0, 1, 1, 4)) for _ in ACTIONS]
    steps = chance.randrange(3, 25)
    sizes = chance.sample(SIZES, chance.randrange(1, 4))

    async def life(world: BookieWorld) -> None:
        async with world.running(close=chance.random() < 0.5) as bookie:
            mine: list[int] = []
            for _ in range(steps):
                kind = chance.choices(ACTIONS, weights)[0] if any(weights) and mine else "create"
                await _act(world, bookie, kind, mine, sizes, chance)

    return life


async def _act(
    world: BookieWorld, bookie: Bookie, kind: str, mine: list[int], sizes: list[int], chance: random.Random
) -> None:
    open_ones = [ledger_id for ledger_id in mine if world.ledgers[ledger_id].is_open()]
    if kind == "create" or not open_ones:
        if len(mine) < LEDGERS_MAX:
            mine.append(max(world.ledgers, default=0) + 1)
            world.create(bookie, mine[-1])
    elif kind in ("add", "spread"):
        ids = [chance.choice(open_ones)] if kind == "add" else open_ones
        await world.add(bookie, *ids, count=chance.randrange(1, 6), size=chance.choice(sizes))
    elif kind == "flush":
        await bookie.flush()
    elif kind == "overlap":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bookie.flush)
            for _ in range(chance.randrange(6)):
                await trio.lowlevel.checkpoint()
            await world.add(bookie, chance.choice(open_ones), size=chance.choice(sizes))
    elif kind == "compact":
        await bookie.compact(chance.choice((0.2, 0.5, 1.0)))
    elif kind == "idle":
        await trio.sleep(chance.choice((1, 61)))
    else:
        ledger_id = chance.choice([i for i, ledger in world.ledgers.items() if not ledger.deleting])
        if kind == "drop":
            await world.drop(bookie, ledger_id)
        elif kind == "delete":
            await world.delete(bookie, ledger_id)
        elif kind == "fence" and world.ledgers[ledger_id].fenced_at is None:
            await world.fence(bookie, ledger_id)
        else:
            await world.read_back(bookie, ledger_id)
