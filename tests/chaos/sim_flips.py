"""One flipped bit, or two sectors in each other's place, in a journal or entry log of a bookie on a simulated
disk.
"""

from __future__ import annotations

import random

from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData, LedgerNotFound
from simulation.bookie.sim_ledger import SimLedger
from simulation.bookie.world import BookieWorld
from simulation.campaign.deterministic import run_deterministically
from simulation.disk.sim_disk import SECTOR_BYTES

GROUP_ENTRIES_MAX = 8


class WrongBytes(AssertionError):
    """Damage was served as data, or took something away without a word."""


def flip_on_sim_disk(seed: int) -> str:
    """Damage one place; everything is then right, or refused with an error that names a file. Says what
    happened.
    """
    chance = random.Random(f"flip {seed}")
    world = BookieWorld(seed)

    async def fill() -> None:
        async with world.running(close=chance.random() < 0.5) as bookie:
            for ledger_id in (1, 2):
                world.create(bookie, ledger_id)
            for _ in range(4):
                await world.add(bookie, 1, 2, count=2, size=chance.choice((10, 100, 700)))

    run_deterministically(seed, fill)
    world.crash("keep")
    path = chance.choice(
        [
            f"data/{room}/{name}"
            for room in ("journal", "entry-logs")
            for name in world.disk.list(f"data/{room}")
        ]
    )
    size = len(world.disk.read_file(path))
    if chance.random() < 0.1 and size >= 2 * SECTOR_BYTES:
        world.disk.swap_sectors(path, *chance.sample(range(size // SECTOR_BYTES), 2))
    else:
        world.disk.flip_bit(path, chance.randrange(size), chance.randrange(8))
    outcomes: set[str] = set()
    wrong: list[WrongBytes] = []

    async def look() -> None:
        async with world.running() as bookie:
            if bookie.recovery.damages:
                outcomes.add("named at the start")
            try:
                for ledger in world.ledgers.values():
                    await _compare(bookie, ledger, path, outcomes)
            except WrongBytes as error:
                wrong.append(error)

    run_deterministically(seed, look)
    if wrong:
        raise wrong[0]
    return ", ".join(sorted(outcomes)) or "harmless"


async def _compare(bookie: Bookie, ledger: SimLedger, path: str, outcomes: set[str]) -> None:
    last = bookie.last_entry_id(ledger.ledger_id)
    # The last group of a journal that is damaged cannot be told from one that a crash cut short.
    if last < len(ledger.bodies) - 1 - GROUP_ENTRIES_MAX:
        raise WrongBytes(f"{path}: {len(ledger.bodies) - 1 - last} entries of ledger {ledger.ledger_id} gone")
    if last < len(ledger.bodies) - 1:
        outcomes.add("cut like a torn end")
    for entry_id in range(last + 1):
        try:
            (body,) = await bookie.read(ledger.ledger_id, entry_id, entry_id, bytes_max=1)
        except LedgerNotFound:
            raise WrongBytes(f"{path}: entry {entry_id} of ledger {ledger.ledger_id} is not found") from None
        except CorruptData as error:
            if "data/" not in str(error) and "damage" not in str(error):
                raise WrongBytes(f"{path}: the error names no file: {error}") from None
            outcomes.add("named when read")
        else:
            if body != ledger.bodies[entry_id]:
                raise WrongBytes(f"{path}: entry {entry_id} of ledger {ledger.ledger_id} is {body[:20]!r}")
