"""No file stays open: neither after a start that fails, wherever it does, nor behind a bookie that ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import trio

from geminga.errors import LedgerNotFound, StorageError
from simulation.bookie.world import BookieWorld, Layout
from simulation.disk.sim_disk import SimFile


@pytest.fixture
def open_files(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Paths of open files."""
    found: dict[int, str] = {}
    init, close = SimFile.__init__, SimFile.close

    def opened(self: SimFile, *args: Any) -> None:
        init(self, *args)
        found[id(self)] = self.path
        kept.append(self)  # so that no id is used twice

    def closed(self: SimFile) -> None:
        close(self)
        found.pop(id(self), None)

    kept: list[SimFile] = []
    monkeypatch.setattr(SimFile, "__init__", opened)
    monkeypatch.setattr(SimFile, "close", closed)
    return found


@pytest.mark.parametrize("layout", [Layout(), Layout(2, 3)], ids=["one", "2x3"])
async def test_a_start_that_fails_closes_what_it_opened(
    new_world: Callable[..., BookieWorld], open_files: dict[int, str], layout: Layout
) -> None:
    failed = 0
    for n in itertools.count():
        world = new_world(layout=layout)
        async with world.running(close=False) as bookie:
            for ledger_id in range(1, 7):
                world.create(bookie, ledger_id)
            await world.add(bookie, *range(1, 7), count=4)
            await bookie.flush()
            await world.add(bookie, *range(1, 7))
        assert open_files == {}
        calls = 0

        def inject(kind: str, path: str, *, n: int = n) -> None:
            nonlocal calls
            calls += 1
            if calls == n + 1:
                raise StorageError(f"{path}: no {kind}")

        world.disk.inject = inject
        try:
            async with world.running(close=False):
                pass
        except* StorageError:
            failed += 1
        assert open_files == {}, f"call {n}"
        if calls <= n:
            break
    assert failed > 10


async def test_what_is_read_behind_the_end_is_closed_again(
    new_world: Callable[..., BookieWorld], open_files: dict[int, str]
) -> None:
    world = new_world()
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1, count=20)
        await bookie.flush()
        assert open_files
    assert open_files == {}
    assert len(await bookie.read(1, 0, 3, bytes_max=10_000)) == 4
    with pytest.raises(LedgerNotFound):
        await bookie.read(2, 0, 3, bytes_max=10_000)
    assert open_files == {}


async def test_nothing_is_written_behind_the_end(
    new_world: Callable[..., BookieWorld], open_files: dict[int, str]
) -> None:
    """A flush that waited for another writer to the entry log when the bookie was closed."""
    world = new_world()
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1, count=3)
        storage = bookie.directories[0].storage
        cache = bookie.directories[0].caches.swap()
        marks = bookie.directories[0].caches.flushing_positions
    with pytest.raises(StorageError, match="closed"):
        await storage.flush(cache, marks, lambda: None)
    await trio.lowlevel.checkpoint()
    assert open_files == {}
