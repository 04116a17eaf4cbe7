"""The n-th read fails with EIO, of a file or of the index, for every n: who asked is told, nothing wrong is
served, nothing is lost by it, and the bookie goes on.
"""

from __future__ import annotations

from typing import Final

import pytest

from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData, LedgerNotFound, StorageError
from simulation.bookie.cases import run_case
from simulation.bookie.scripts import SCRIPTS
from simulation.bookie.world import BookieWorld
from simulation.disk.sim_disk import SimFile

LEDGERS: Final = (1, 2, 3)


async def fill(world: BookieWorld) -> None:
    async with world.running() as bookie:
        for ledger_id in LEDGERS:
            world.create(bookie, ledger_id)
        for size in (60, 300):
            await world.add(bookie, *LEDGERS, count=4, size=size)
            await bookie.flush()
        await world.drop(bookie, 2)


class FailingReads:
    """Fails the `at`-th read of a kind, and with `sticky` all after it."""

    def __init__(self, kind: str, at: int, *, sticky: bool) -> None:
        self.kind, self.at, self.sticky = kind, at, sticky
        self.calls = self.failed = 0

    def __call__(self, kind: str, path: str) -> None:
        if kind == self.kind:
            self.calls += 1
            if self.calls - 1 == self.at or (self.sticky and self.calls > self.at):
                self.failed += 1
                raise StorageError(f"{path}: injected: cannot {kind}: Input/output error")


async def read_all(world: BookieWorld, bookie: Bookie) -> int:
    """How many of the ledgers could not be read; `read_back` holds the others against what was added."""
    refused = 0
    for ledger_id in (1, 3):
        try:
            await world.read_back(bookie, ledger_id)
        except (CorruptData, LedgerNotFound):
            raise  # it is neither damaged nor gone
        except StorageError:
            refused += 1
    return refused


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("kind", ["read", "index read"])
def test_a_reader_is_told_and_may_ask_again(kind: str, sticky: bool) -> None:
    at = refusals = 0
    failed = True
    while failed:
        world = BookieWorld()
        assert world.run(fill)
        reads = FailingReads(kind, at, sticky=sticky)

        async def life(world: BookieWorld, reads: FailingReads = reads) -> None:
            nonlocal refusals
            async with world.running() as bookie:
                world.disk.inject = reads
                refused = await read_all(world, bookie)
                world.disk.inject = None
                assert refused <= reads.failed
                refusals += refused
                assert await read_all(world, bookie) == 0
                world.create(bookie, 4)
                await world.add(bookie, 4, count=3)
                await bookie.flush()
                assert await world.read_back(bookie, 4) == 2

        assert world.run(life)
        failed = reads.failed > 0
        at += 1
    assert refusals >= 4


@pytest.mark.parametrize("script", ["restarts", "torn_start"])
def test_a_start_on_a_disk_that_reads_as_zeros_ends(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a disk that knows no end of a file: whatever it opens with then, it reads each file once or
    a few times.
    """
    world = BookieWorld()
    assert world.run(SCRIPTS[script])
    reads: list[str] = []

    def zeros(file: SimFile, offset: int, length: int) -> bytes:
        reads.append(file.path)
        assert len(reads) < 1000, f"read for ever: {reads[-3:]}"
        return bytes(length)

    monkeypatch.setattr(SimFile, "pread", zeros)

    async def life(world: BookieWorld) -> None:
        async with world.running():
            pass

    assert world.run(life)
    assert len(reads) >= 3


def test_compaction_leaves_what_it_cannot_read_where_it_is() -> None:
    at = 0
    failed = True
    while failed:
        world = BookieWorld()
        assert world.run(fill)
        reads = FailingReads("read", at, sticky=False)

        async def life(world: BookieWorld, reads: FailingReads = reads) -> None:
            async with world.running() as bookie:
                world.disk.inject = reads
                await bookie.compact(1.0)
                world.disk.inject = None
                assert await read_all(world, bookie) == 0

        assert world.run(life)
        world.check()
        failed = reads.failed > 0
        at += 1
    assert at > 5


@pytest.mark.parametrize("script", ["restarts", "torn_start"])
def test_the_nth_read_of_a_script_fails(script: str) -> None:
    """Reads of a start among them: it opens with everything, or not at all."""
    kinds: list[str] = []
    world = BookieWorld()
    world.disk.inject = lambda kind, path: kinds.append(kind)
    assert world.run(SCRIPTS[script])
    reads = [number for number, kind in enumerate(kinds) if kind.endswith("read")]
    assert {kinds[number] for number in reads} == {"read", "index read"}
    for number in reads:
        run_case(f"{script}:{number}:{'sticky' if number % 2 else 'once'}")
