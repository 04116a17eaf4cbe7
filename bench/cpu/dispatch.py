"""CPU per consumed entry in the broker's dispatch path: read from the tail cache, share out, encode, book,
acknowledge.

python bench/cpu/dispatch.py [--entries 200000] [--rounds 5]

Everything is real but the disk (simulated) and the socket (an outbox that throws the buffers away). Entries
are unbatched, 1 KiB, published before the clock starts; the journal is no part of the figure.
Acknowledgements come in lists of `--ack-group` positions, as clients with grouping send them. Prints
microseconds of CPU per entry, the best of the rounds, for each subscription type.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.bookie.running.bookie import Bookie
from geminga.broker.delays.settings import DelayPolicy
from geminga.broker.delays.subscription_delays import OpenedIndex, SubscriptionDelays
from geminga.broker.dispatch.consumer import SUBSCRIPTION_TYPES, Consumer
from geminga.broker.flow.read_memory import ReadMemory
from geminga.broker.subscription.subscription import Subscription, SubscriptionSettings
from geminga.clock import RealClock
from geminga.events.recording import unrecorded
from geminga.limits import MIB
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import stamp
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from tests.tracker.in_memory import in_memory_tracker

TOPIC = TopicName.parse("persistent://public/default/bench")
PAYLOAD_BYTES = 1024


class Discard:
    """An outbox without a socket."""

    def __init__(self) -> None:
        self.closed = False
        self.on_writable: set[Callable[[], None]] = set()
        self.written_bytes = 0

    def write(self, data: Any) -> None:
        self.written_bytes += len(data) if isinstance(data, bytes) else sum(map(len, data))

    def is_writable(self) -> bool:
        return True

    def room_bytes(self) -> int:
        return 4 * MIB


def entry(number: int, *, keyed: bool) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="standalone-0-1", sequence_id=number, publish_time=1_700_000_000_000
    )
    if keyed:
        metadata.partition_key = f"key-{number % 1000}"
    head = metadata.SerializeToString()
    return b"\x0e\x01" + b"\0" * 4 + len(head).to_bytes(4, "big") + head + b"x" * PAYLOAD_BYTES


class Bench:
    def __init__(self, ledger: ManagedLedger, nursery: trio.Nursery, clock: RealClock) -> None:
        self.ledger = ledger
        self.nursery = nursery
        self.clock = clock
        self.topic: Any = SimpleNamespace(name=TOPIC, partition_index=-1, ledger=ledger, subscriptions={})
        self.confirmed = 0
        ledger.attach(self)

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        self.confirmed += len(contexts)

    def on_add_failed(self, error: Exception, contexts: list[Any]) -> None:
        raise error

    policy = DelayPolicy()
    record = staticmethod(unrecorded)
    shared = None

    def has_index(self, cursor: object) -> bool:
        return False

    def start_soon(self, work: object) -> bool:
        return False

    async def open(self, delays: SubscriptionDelays) -> OpenedIndex:
        return OpenedIndex(in_memory_tracker(self.clock), None)

    async def fill(self, entries: int, *, keyed: bool) -> None:
        prefix = stamp(self.clock.now_ms())
        for number in range(entries):
            self.ledger.append([prefix + entry(number, keyed=keyed)], None)
            if number % 1000 == 0:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert self.confirmed == entries

    async def consume(self, sub_type: str, consumers: int, entries: int, ack_group: int) -> float:
        start = self.ledger.first_position()
        subscription = Subscription(
            self.topic,
            "bench",
            await self.ledger.open_cursor("bench", initial="earliest"),
            settings=SubscriptionSettings(failover_delay_ms=0),
            clock=self.clock,
            index_door=self,
            reads=ReadMemory(4 * MIB),
        )
        self._forget_metadata(start, entries)
        attached = []
        for number in range(consumers):
            command = pb.CommandSubscribe(
                topic=str(TOPIC),
                subscription="bench",
                subType=SUBSCRIPTION_TYPES.index(sub_type),  # type: ignore[arg-type]
                consumer_id=number,
                request_id=1,
                consumer_name=f"c{number}",
            )
            consumer = Consumer(command, Discard())  # type: ignore[arg-type]
            subscription.add_consumer(consumer)
            attached.append(consumer)
        await self.nursery.start(subscription.run)
        await trio.testing.wait_all_tasks_blocked()
        cpu_ns = time.process_time_ns()
        acked = [0] * consumers
        sent = 0
        while sent < entries:
            for consumer in attached:
                if consumer.permits <= 500:
                    subscription.consumers.flow(consumer, 500)
            await trio.lowlevel.checkpoint()
            sent = 0
            for number, consumer in enumerate(attached):
                sent += consumer.messages_out
                acked[number] += self._acknowledge(subscription, consumer, acked[number], ack_group)
        cpu_us = (time.process_time_ns() - cpu_ns) / 1000 / entries
        await subscription.delete()
        return cpu_us

    def _acknowledge(self, subscription: Subscription, consumer: Consumer, acked: int, ack_group: int) -> int:
        """Acknowledge what is pending, as the client of this consumer would."""
        if consumer.pending.ledgers:
            positions = [(i, e) for i, entries in consumer.pending.ledgers.items() for e in entries]
        else:
            ledger_id = self.ledger.first_position().ledger_id
            positions = [(ledger_id, e) for e in range(acked, consumer.messages_out)]
        for first in range(0, len(positions), ack_group):
            subscription.acks.acknowledge(consumer, positions[first : first + ack_group])
        return len(positions)

    def _forget_metadata(self, start: Position, entries: int) -> None:
        """Whoever reads an entry first looks at its metadata; here each round does."""
        place = start
        for _ in range(0, entries, 1000):
            for found in self.ledger.read_cached(place, 1000, 1 << 30):
                found.peek = None
                place = found.position.next()


CASES = (
    ("Exclusive", 1),
    ("Failover", 1),
    ("Shared", 1),
    ("Shared", 4),
    ("Key_Shared", 4),
)


async def run(entries: int, rounds: int, ack_group: int, profile: str | None) -> None:
    clock = RealClock()
    async with trio.open_nursery() as nursery:
        metadata = MetadataStore(SimKeyValue(), threaded=False)
        await nursery.start(metadata.run)
        bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
        await nursery.start(bookie.run)
        ledger = await ManagedLedger.open(
            f"/managed-ledgers/{TOPIC.path}",
            bookie,
            metadata,
            LedgerIds(metadata),
            clock,
            ManagedLedgerSettings(ledger_entries_max=10_000_000, cursor_persist_interval_ms=3_600_000),
            tail_cache=TailCache(2 << 30),
        )
        ledger.life.run_in(nursery)
        keeper = await ledger.open_cursor("keeper", initial="earliest")
        assert keeper.backlog_entries() == 0
        bench = Bench(ledger, nursery, clock)
        await bench.fill(entries, keyed=True)
        for sub_type, consumers in CASES:
            if profile is not None and profile != sub_type:
                continue
            profiler = cProfile.Profile() if profile else None
            best = float("inf")
            for _ in range(rounds):
                if profiler:
                    profiler.enable()
                best = min(best, await bench.consume(sub_type, consumers, entries, ack_group))
                if profiler:
                    profiler.disable()
            print(f"{sub_type:12} {consumers} consumer(s)  {best:5.2f} us CPU per entry", flush=True)
            if profiler:
                pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ack-group", type=int, default=100)
    parser.add_argument("--profile", metavar="TYPE", help="profile the rounds of one subscription type")
    arguments = parser.parse_args()
    trio.run(run, arguments.entries, arguments.rounds, arguments.ack_group, arguments.profile)


if __name__ == "__main__":
    main()
