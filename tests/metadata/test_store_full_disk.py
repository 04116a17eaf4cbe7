"""A full disk under the metadata store: a refused write is nowhere, and the store goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import trio

from geminga.errors import ReadOnly
from geminga.metadata.space_reserve import RESERVED_INODES, SpaceReserve
from geminga.metadata.store import MUST_NOT_EXIST, Delete, MetadataStore, Put
from geminga.storage.disk_errors import DiskFull
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue

PATHS = ("/a", "/b", "/c")


def full_at(steps: range) -> Callable[[], None]:
    """A function for each step of the store: these find no space."""
    numbers = itertools.count()

    def step() -> None:
        if next(numbers) in steps:
            raise DiskFull("/metadata: disk full, cannot write: no space")

    return step


@pytest.mark.parametrize("lasting", [1, 3])
async def test_no_space_at_any_step(lasting: int) -> None:
    """At writes, or at syncs when all is in the log; for requests that are queued behind each other, too."""
    for at in range(0, 24, 2 if lasting == 1 else 3):
        values = SimKeyValue(seed=at)
        values.before_write = values.before_sync = full_at(range(at, at + lasting))
        expected: dict[str, bytes] = {}
        refused = 0
        async with trio.open_nursery() as nursery:
            store = MetadataStore(values, threaded=False)
            await nursery.start(store.run)

            async def put(
                path: str,
                value: bytes,
                store: MetadataStore = store,
                expected: dict[str, bytes] = expected,
            ) -> None:
                nonlocal refused
                try:
                    await store.put(path, value)
                except DiskFull:
                    refused += 1
                else:
                    expected[path] = value

            for turn in range(6):
                async with trio.open_nursery() as callers:
                    for number, path in enumerate((*PATHS, "/a")):
                        callers.start_soon(put, path, b"%d.%d" % (turn, number))
                        await trio.lowlevel.checkpoint()
                for path in PATHS:
                    stored = store.get(path)
                    assert (stored.value if stored else None) == expected.get(path)
                assert store.children("/") == sorted(path[1:] for path in expected)
                assert store.statistics().queued_bytes == 0
            nursery.cancel_scope.cancel()
        assert refused
        after = MetadataStore(values.crash())
        found = {path: after.get(path) for path in PATHS}
        assert {path: stored.value for path, stored in found.items() if stored} == expected


async def test_a_refused_write_uses_no_version() -> None:
    """Neither does one that was queued behind it, and follows from it."""
    values = SimKeyValue()
    values.before_sync = full_at(range(1))
    refused: list[str] = []
    async with trio.open_nursery() as nursery:
        store = MetadataStore(values, threaded=False)
        await nursery.start(store.run)

        async def put(path: str, version: int) -> None:
            try:
                await store.put(path, b"refused", version)
            except DiskFull:
                refused.append(path)

        async with trio.open_nursery() as callers:
            callers.start_soon(put, "/a", MUST_NOT_EXIST)
            while not store.statistics().queued:
                await trio.lowlevel.checkpoint()
            callers.start_soon(put, "/a", 0)
        assert refused == ["/a", "/a"]
        assert await store.put("/a", b"1", MUST_NOT_EXIST) == 0
        nursery.cancel_scope.cancel()


async def test_the_last_space_is_for_what_ends_a_full_disk() -> None:
    disk = SimDisk()
    disk.make_directory("metadata")
    async with trio.open_nursery() as nursery:
        reserve = SpaceReserve(disk, "metadata", 1 << 20)
        store = MetadataStore(SimKeyValue(), reserve, threaded=False)
        await nursery.start(store.run)
        disk.free = 1000
        await store.put("/topic", b"1")  # by the start
        reserve.begin()
        for free, inodes in ((1000, None), (1 << 30, RESERVED_INODES - 1)):
            disk.free, disk.inodes = free, inodes
            with pytest.raises(ReadOnly, match="metadata: disk full") as refused:
                await store.put("/another", b"1")
            assert refused.value.http_status == 507
            await store.put("/cursor", b"1", is_urgent=True)
            await store.delete("/cursor")
        disk.free, disk.inodes = 1 << 30, RESERVED_INODES
        await store.transact([Put("/another", b"1", None)], [Delete("/topic", None)])
        assert store.children("/") == ["another"]
        nursery.cancel_scope.cancel()
