"""A real bookie and real metadata in a directory of the test's own, opened and left as often as it likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from geminga.bookie.running.bookie import Bookie
from geminga.errors import GemingaError
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor_saver import CursorSaver
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.position import Position
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

TOPIC = TopicName.parse("persistent://public/default/orders")


class HandClock:
    """Message time that a test moves by hand."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def worker(self, name: str) -> None:
        return None

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return self.ms / 1000


class Listener:
    """Remembers what the managed ledger said of each entry, and lets a test wait for it."""

    def __init__(self) -> None:
        self.confirmed: dict[Position, Any] = {}
        self.failed: list[Any] = []
        self.errors: list[GemingaError] = []
        self.fenced = trio.Event()
        self._progress = trio.Event()

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        for entry_id, context in enumerate(contexts, first_entry_id):
            position = Position(ledger_id, entry_id)
            assert not self.confirmed or position > max(self.confirmed), "confirmations go forward"
            self.confirmed[position] = context
        self._wake()

    def on_add_failed(self, error: GemingaError, contexts: list[Any]) -> None:
        self.failed += contexts
        self.errors.append(error)
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def settled(self, count: int) -> None:
        """Wait until `count` entries in all were confirmed or failed."""
        with trio.fail_after(10):
            while len(self.confirmed) + len(self.failed) < count:
                await self._progress.wait()


class Rooms:
    """The rooms below, open, and a nursery for what is opened on them."""

    def __init__(
        self, bookie: Bookie, metadata: MetadataStore, clock: HandClock, nursery: trio.Nursery
    ) -> None:
        self.bookie = bookie
        self.metadata = metadata
        self.ledger_ids = LedgerIds(metadata)
        self.clock = clock
        self.tail_cache = TailCache()
        self.nursery = nursery

    async def open(
        self,
        settings: ManagedLedgerSettings | None = None,
        *,
        topic: TopicName = TOPIC,
        create: bool = True,
        saver: CursorSaver | None = None,
    ) -> ManagedLedger:
        """A managed ledger whose task runs and whose listener is a `Listener`."""
        ledger = await ManagedLedger.open(
            f"/managed-ledgers/{topic.path}",
            self.bookie,
            self.metadata,
            self.ledger_ids,
            self.clock,
            settings,
            tail_cache=self.tail_cache,
            create=create,
        )
        listener = Listener()
        ledger.attach(listener, listener.fenced.set)
        ledger.life.run_in(self.nursery, saver)
        return ledger


@asynccontextmanager
async def open_rooms(path: Path, clock: HandClock, *, crash: bool = False) -> AsyncIterator[Rooms]:
    """Open the directory as a broker would. With `crash` nothing is closed in order at the end."""
    disk = RealDisk()
    index = RocksKeyValue(str(path / "index"))
    tree = RocksKeyValue(str(path / "metadata"))
    try:
        async with trio.open_nursery() as nursery:
            metadata = MetadataStore(tree)
            await nursery.start(metadata.run)
            bookie = await Bookie.open(disk, index, str(path / "bookie"))
            await nursery.start(bookie.run)
            async with trio.open_nursery() as above:
                yield Rooms(bookie, metadata, clock, above)
                above.cancel_scope.cancel()
            if not crash:
                await bookie.close()
            nursery.cancel_scope.cancel()
    finally:
        index.close()
        tree.close()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def rooms(tmp_path: Path, clock: HandClock) -> Callable[..., AbstractAsyncContextManager[Rooms]]:
    """`async with rooms() as r:` opens the test's directory; again after it, it is a restart."""

    def open_again(*, crash: bool = False) -> AbstractAsyncContextManager[Rooms]:
        return open_rooms(tmp_path, clock, crash=crash)

    return open_again


async def publish(ledger: ManagedLedger, bodies: list[bytes]) -> list[Position]:
    """Append, wait until all are durable, and say where they are."""
    listener = ledger.listener
    assert isinstance(listener, Listener)
    before = len(listener.confirmed) + len(listener.failed)
    for body in bodies:
        ledger.append([body], body)
    await listener.settled(before + len(bodies))
    return list(listener.confirmed)[-len(bodies) :]


async def drain(ledger: ManagedLedger, start: Position, *, count: int = 100) -> list[tuple[Position, bytes]]:
    """Everything from `start` to the tail, read as a dispatcher would."""
    found = []
    place = start
    while entries := await ledger.read(place, count, 1 << 20):
        found += [(entry.position, entry.body) for entry in entries]
        place = ledger.next_position(entries[-1].position)
    return found


@pytest.fixture(name="publish")
def publish_fixture() -> Callable[..., Any]:
    return publish


@pytest.fixture(name="drain")
def drain_fixture() -> Callable[..., Any]:
    return drain
