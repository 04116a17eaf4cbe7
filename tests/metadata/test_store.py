"""The metadata store on a real RocksDB: versions, groups, watches, transactions, failures."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from geminga.errors import BadVersion, CorruptData, KeyMissing, StorageError
from geminga.metadata import group_commit
from geminga.metadata.node import VALUE_BYTES_MAX
from geminga.metadata.store import (
    CHILDREN_AT_ONCE,
    MUST_NOT_EXIST,
    Change,
    ChangeKind,
    Delete,
    MetadataStore,
    Put,
    Stored,
    ValueTooLarge,
)
from geminga.storage.key_value import KeyValue, RocksKeyValue
from simulation.disk.sim_key_value import SimKeyValue


@asynccontextmanager
async def running(key_value: KeyValue, *, threaded: bool = True) -> AsyncIterator[MetadataStore]:
    store = MetadataStore(key_value, threaded=threaded)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


@pytest.fixture
def rocks(tmp_path: Path) -> AbstractAsyncContextManager[MetadataStore]:
    @asynccontextmanager
    async def open_store() -> AsyncIterator[MetadataStore]:
        key_value = RocksKeyValue(str(tmp_path / "metadata"))
        try:
            async with running(key_value) as store:
                yield store
        finally:
            key_value.close()

    return open_store()


class GatedKeyValue(SimKeyValue):
    """Stops each synced write, on the writer's thread, after it is readable and before it is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.before_sync = self._hold

    def _hold(self) -> None:
        self.entered.set()
        assert self.gate.wait(10)

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(self.entered.wait, 10)


async def test_versions_count_from_zero_and_start_anew_after_a_delete(
    rocks: AbstractAsyncContextManager[MetadataStore],
) -> None:
    async with rocks as store:
        assert store.get("/a") is None
        assert await store.put("/a", b"one") == 0
        assert await store.put("/a", b"two", 0) == 1
        assert await store.put("/a", b"three") == 2
        assert store.get("/a") == Stored(b"three", 2)
        await store.delete("/a", 2)
        assert store.get("/a") is None
        assert await store.put("/a", b"", MUST_NOT_EXIST) == 0
        assert store.get("/a") == Stored(b"", 0)


async def test_conflicts(rocks: AbstractAsyncContextManager[MetadataStore]) -> None:
    async with rocks as store:
        with pytest.raises(BadVersion, match="/a: expected version 0, found absent"):
            await store.put("/a", b"x", 0)
        with pytest.raises(KeyMissing):
            await store.delete("/a")
        with pytest.raises(KeyMissing):
            await store.delete("/a", 3)
        await store.put("/a", b"x")
        with pytest.raises(BadVersion, match="expected absent, found version 0"):
            await store.put("/a", b"y", MUST_NOT_EXIST)
        with pytest.raises(BadVersion):
            await store.delete("/a", 1)
        assert store.get("/a") == Stored(b"x", 0)
        assert store.statistics().conflicts == 5


async def test_children_are_direct_and_sorted(rocks: AbstractAsyncContextManager[MetadataStore]) -> None:
    async with rocks as store:
        paths = ["/t/b", "/t/a", "/t/a/deep", "/t/a/deep/er", "/t/ab", "/t-x/c", "/t0", "/t/a-", "/t"]
        await store.transact([Put(path, b"") for path in paths])
        assert store.children("/t") == ["a", "a-", "ab", "b"]
        assert store.children("/t/a") == ["deep"]
        assert store.children("/t/nothing") == []
        assert store.children("/") == ["t", "t0"]
        await store.delete("/t/a")
        assert store.children("/t") == ["a-", "ab", "b"]
        assert store.children("/t/a") == ["deep"]


async def test_many_children_are_read_some_at_a_time_and_none_is_left_out(
    rocks: AbstractAsyncContextManager[MetadataStore],
) -> None:
    async with rocks as store:
        names = [f"{n:05}" for n in range(3 * CHILDREN_AT_ONCE)]
        await store.transact([Put(f"/n/{name}", b"") for name in names])
        assert store.children("/n") == names
        found = store.each_child("/n")
        seen = [next(found) for _ in range(CHILDREN_AT_ONCE)]
        await store.delete(f"/n/{names[0]}")
        await store.delete(f"/n/{names[-1]}")
        await store.put(f"/n/{names[-2]}x", b"")
        assert seen + list(found) == [*names[:-1], f"{names[-2]}x"]


async def test_a_transaction_is_all_or_nothing(rocks: AbstractAsyncContextManager[MetadataStore]) -> None:
    async with rocks as store:
        await store.put("/keep", b"k")
        with pytest.raises(BadVersion):
            await store.transact([Put("/a", b"1"), Put("/keep", b"2", 7)], [])
        with pytest.raises(KeyMissing):
            await store.transact([Put("/a", b"1")], [Delete("/keep", 0), Delete("/none")])
        assert store.get("/a") is None
        assert store.get("/keep") == Stored(b"k", 0)
        assert await store.transact(
            [Put("/a", b"1", MUST_NOT_EXIST), Put("/b", b"2")], [Delete("/keep", 0)]
        ) == [0, 0]
        assert store.get("/keep") is None
        assert (store.get("/a"), store.get("/b")) == (Stored(b"1", 0), Stored(b"2", 0))
        assert await store.transact([]) == []


async def test_reopened_it_holds_what_was_put(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata")
    for turn in range(3):
        key_value = RocksKeyValue(path)
        async with running(key_value) as store:
            assert store.children("/n") == [str(n) for n in range(turn)]
            assert await store.put("/counter", b"c%d" % turn) == turn
            await store.put(f"/n/{turn}", b"")
        key_value.close()


async def test_concurrent_puts_share_syncs(tmp_path: Path) -> None:
    key_value = RocksKeyValue(str(tmp_path / "metadata"))
    async with running(key_value) as store:
        async with trio.open_nursery() as nursery:
            for n in range(500):
                nursery.start_soon(store.put, f"/n/{n}", b"value")
        statistics = store.statistics()
        assert statistics.requests == 500
        assert statistics.groups <= 20
        assert statistics.queued_bytes == 0
        assert len(store.children("/n")) == 500
    key_value.close()


async def test_the_loop_runs_on_while_a_sync_takes_its_time() -> None:
    key_value = GatedKeyValue()
    async with running(key_value) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.put, "/a", b"x")
        await key_value.wait_entered()
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        key_value.gate.set()
    assert store.get("/a") == Stored(b"x", 0)


async def test_only_what_is_durable_is_read() -> None:
    key_value = GatedKeyValue()
    key_value.gate.set()
    async with running(key_value) as store:
        await store.transact([Put("/d/old", b"1"), Put("/d/gone", b"1")])
        key_value.entered.clear()
        key_value.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                store.transact, [Put("/d/old", b"2"), Put("/d/new", b"2")], [Delete("/d/gone")]
            )
            await key_value.wait_entered()
            assert key_value.get(b"\x02/d/gone") is None, "the batch is readable below"
            assert store.get("/d/old") == Stored(b"1", 0)
            assert store.get("/d/new") is None
            assert store.get("/d/gone") == Stored(b"1", 0)
            assert store.children("/d") == ["gone", "old"]
            key_value.gate.set()
        assert store.children("/d") == ["new", "old"]
        assert store.get("/d/old") == Stored(b"2", 1)


@pytest.mark.parametrize("first_is_queued", [False, True])
async def test_a_conflict_with_an_unfinished_write_is_told_when_that_is_durable(
    first_is_queued: bool,
) -> None:
    key_value = GatedKeyValue()
    async with running(key_value) as store, trio.open_nursery() as nursery:
        if first_is_queued:
            nursery.start_soon(store.put, "/other", b"")
            await key_value.wait_entered()
        nursery.start_soon(store.put, "/a", b"first", MUST_NOT_EXIST)
        await trio.testing.wait_all_tasks_blocked()
        seen: list[Stored | None] = []

        async def second() -> None:
            with pytest.raises(BadVersion):
                await store.put("/a", b"second", MUST_NOT_EXIST)
            seen.append(store.get("/a"))

        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        key_value.gate.set()
    assert seen == [Stored(b"first", 0)]


async def test_versions_chain_through_the_queue() -> None:
    key_value = GatedKeyValue()
    versions: list[int] = []
    async with running(key_value) as store, trio.open_nursery() as nursery:

        async def put(expected: int) -> None:
            versions.append(await store.put("/a", b"%d" % expected, expected))

        for expected in (-1, 0, 1, 2):
            nursery.start_soon(put, expected)
            await trio.testing.wait_all_tasks_blocked()
        key_value.gate.set()
    assert sorted(versions) == [0, 1, 2, 3]
    assert store.get("/a") == Stored(b"2", 3)
    assert store.statistics().groups == 2


async def test_a_cancelled_waiter_neither_undoes_nor_breaks_anything() -> None:
    key_value = GatedKeyValue()
    async with running(key_value) as store:
        for cancelled_while in ("committing", "queued"):
            key_value.gate.clear()
            key_value.entered.clear()
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()

                async def put(path: str, scope: trio.CancelScope) -> None:
                    with scope:
                        await store.put(path, b"x")

                if cancelled_while == "queued":
                    nursery.start_soon(store.put, "/other", b"")
                    await key_value.wait_entered()
                nursery.start_soon(put, f"/{cancelled_while}", scope)
                await trio.testing.wait_all_tasks_blocked()
                await key_value.wait_entered()
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked()
                key_value.gate.set()
        await store.put("/after", b"x")
        assert store.children("/") == ["after", "committing", "other", "queued"]


async def test_a_failed_sync_reaches_run_and_every_waiter() -> None:
    key_value = SimKeyValue()
    store = MetadataStore(key_value, threaded=True)
    failures: list[str] = []

    async def put(path: str) -> None:
        with pytest.raises(StorageError) as caught:
            await store.put(path, b"x")
        failures.append(str(caught.value))

    async def run_store(task_status: trio.TaskStatus[None]) -> None:
        with pytest.raises(StorageError, match="no space"):
            await store.run(task_status)

    def fail() -> None:
        raise StorageError("no space")

    async with trio.open_nursery() as nursery:
        await nursery.start(run_store)
        await store.put("/good", b"x")
        key_value.before_sync = fail
        for n in range(10):
            nursery.start_soon(put, f"/{n}")
    assert len(failures) == 10
    assert all("no space" in text for text in failures)
    for write in (store.put("/later", b"x"), store.delete("/good")):
        with pytest.raises(StorageError, match="no space"):
            await write
    assert store.get("/good") == Stored(b"x", 0)
    assert store.children("/") == ["good"], "what failed is not shown as durable"


async def test_stopping_finishes_the_group_and_refuses_the_rest() -> None:
    key_value = GatedKeyValue()
    store = MetadataStore(key_value)
    outcomes: dict[str, str] = {}

    async def put(path: str) -> None:
        try:
            await store.put(path, b"x")
            outcomes[path] = "durable"
        except StorageError as error:
            outcomes[path] = str(error)

    async with trio.open_nursery() as nursery, trio.open_nursery() as store_nursery:
        await store_nursery.start(store.run)
        nursery.start_soon(put, "/committing")
        await key_value.wait_entered()
        nursery.start_soon(put, "/queued")
        await trio.testing.wait_all_tasks_blocked()
        store_nursery.cancel_scope.cancel()
        key_value.gate.set()
    assert outcomes["/committing"] == "durable"
    assert "stopped" in outcomes["/queued"]
    with pytest.raises(StorageError, match="stopped"):
        await store.put("/late", b"")


async def test_puts_wait_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_BYTES_MAX", 10_000)
    key_value = GatedKeyValue()
    async with running(key_value) as store:
        with trio.CancelScope() as given_up:
            async with trio.open_nursery() as nursery:
                for n in range(100):
                    nursery.start_soon(store.put, f"/{n:03}", bytes(500))
                await trio.testing.wait_all_tasks_blocked()
                assert store.statistics().queued_bytes <= 10_000
                assert 3 <= store.statistics().requests <= 6
                given_up.cancel()
        key_value.gate.set()
        accepted = store.statistics().requests
        async with trio.open_nursery() as nursery:
            for n in range(100, 200):
                nursery.start_soon(store.put, f"/{n:03}", bytes(500))
        assert len(store.children("/")) == accepted + 100, "who waited for room and gave up left nothing"


async def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "GROUP_BYTES_MAX", 5_000)
    key_value = GatedKeyValue()
    async with running(key_value) as store, trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(store.put, f"/{n}", bytes(1000))
        nursery.start_soon(store.put, "/big", bytes(50_000))
        await trio.testing.wait_all_tasks_blocked()
        key_value.gate.set()
    assert store.statistics().largest_group == 2
    assert len(store.children("/")) == 21


async def test_a_value_is_bounded(rocks: AbstractAsyncContextManager[MetadataStore]) -> None:
    async with rocks as store:
        assert await store.put("/a", bytes(VALUE_BYTES_MAX)) == 0
        with pytest.raises(ValueTooLarge):
            await store.put("/a", bytes(VALUE_BYTES_MAX + 1))


@pytest.mark.parametrize("path", ["", "a", "/", "/a/", "//a", "/a//b", "/" + "a/" * 40 + "a"])
async def test_malformed_paths_are_our_own_bugs(path: str) -> None:
    store = MetadataStore(SimKeyValue())
    with pytest.raises(AssertionError):
        store.get(path)
    with pytest.raises(AssertionError):
        await store.put(path, b"")


async def test_watch_sees_its_subtree_in_order(rocks: AbstractAsyncContextManager[MetadataStore]) -> None:
    async with rocks as store:
        with store.watch("/t") as changes, store.watch("/") as everything:
            await store.put("/other", b"")
            await store.put("/tt", b"")
            await store.put("/t", b"")
            await store.put("/t/a", b"")
            await store.put("/t/a", b"")
            await store.delete("/t/a")
            received = [changes.receive_nowait() for _ in range(4)]
            assert received == [
                Change("/t", ChangeKind.CREATED, 0),
                Change("/t/a", ChangeKind.CREATED, 0),
                Change("/t/a", ChangeKind.MODIFIED, 1),
                Change("/t/a", ChangeKind.DELETED, 1),
            ]
            with pytest.raises(trio.WouldBlock):
                changes.receive_nowait()
            assert everything.statistics().current_buffer_used == 6
        assert store.statistics().watchers == 0
        await store.put("/t", b"")


async def test_a_watch_of_a_node_and_one_above_it_sees_a_change_once(
    rocks: AbstractAsyncContextManager[MetadataStore],
) -> None:
    async with rocks as store:
        with store.watch("/t", "/t/a") as changes:
            await store.put("/t/a", b"", MUST_NOT_EXIST)
            await store.put("/ta", b"", MUST_NOT_EXIST)
            await store.put("/t/a/b", b"", MUST_NOT_EXIST)
            assert [changes.receive_nowait().path for _ in range(2)] == ["/t/a", "/t/a/b"]
            with pytest.raises(trio.WouldBlock):
                changes.receive_nowait()


async def test_a_slow_watcher_gets_one_resync_for_what_it_missed() -> None:
    async with running(SimKeyValue(), threaded=False) as store:
        with store.watch("/t") as changes:
            await store.transact([Put(f"/t/{n:04}", b"") for n in range(300)])
            received = [changes.receive_nowait() for _ in range(257)]
            assert received[255] == Change("/t/0255", ChangeKind.CREATED, 0)
            assert received[256] == Change("/t", ChangeKind.RESYNC, -1)
            with pytest.raises(trio.WouldBlock):
                changes.receive_nowait()
            await store.put("/t/0000", b"")
            assert changes.receive_nowait() == Change("/t/0000", ChangeKind.MODIFIED, 1)


async def test_a_watch_ends_with_the_store() -> None:
    async with running(SimKeyValue(), threaded=False) as store:
        with store.watch("/") as changes:
            await store.put("/a", b"")
            async with trio.open_nursery() as nursery:
                seen: list[str] = []

                async def follow() -> None:
                    seen.extend([change.path async for change in changes])

                nursery.start_soon(follow)
                await trio.testing.wait_all_tasks_blocked()
                store._watchers.close()
            assert seen == ["/a"]


async def test_is_empty(rocks: AbstractAsyncContextManager[MetadataStore]) -> None:
    async with rocks as store:
        assert store.is_empty()
        await store.put("/a/b/c", b"")
        assert not store.is_empty()
        await store.delete("/a/b/c")
        assert store.is_empty()


async def test_a_flipped_bit_never_shortens_the_list_of_children(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    key_value: KeyValue = RocksKeyValue(str(path))
    async with running(key_value) as store:
        await store.transact([Put(f"/n/{n:04}", b"value") for n in range(2000)])
    key_value.close()
    (table,) = path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[30_000] ^= 1
    table.write_bytes(content)
    key_value = RocksKeyValue(str(path))
    store = MetadataStore(key_value)
    with pytest.raises(CorruptData, match="metadata: damaged"):
        store.children("/n")
    unreadable = 0
    for n in range(2000):
        try:
            assert store.get(f"/n/{n:04}") == Stored(b"value", 0)
        except CorruptData:
            unreadable += 1
    assert 0 < unreadable < 1000
    key_value.close()
