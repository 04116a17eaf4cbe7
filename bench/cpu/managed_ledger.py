"""CPU time of the managed ledger's hot paths, per entry, without a bookie.

A stub takes the bookie's place, so that only this room is measured; its own cost is printed too. Process time
is counted, best of several rounds, so that a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.clock import RealClock
from geminga.managed_ledger.chain.appender import Appender
from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.managed_ledger.chain.ledger_reads import LedgerReads
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.managed_ledger.cursor.cursor_state_format import encode
from geminga.position import Position

ENTRIES = 50_000
BODY = bytes(1024)


class StubWriter:
    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry_id = 0

    def append(self, body: bytes) -> int:
        entry_id = self.next_entry_id
        self.next_entry_id = entry_id + 1
        return entry_id

    def close(self) -> None:
        pass


class StubBookie:
    def create_ledger(
        self, ledger_id: int, *, on_durable: Any, on_failed: Any, topic: str, purpose: str
    ) -> StubWriter:
        self.on_durable = on_durable
        return StubWriter(ledger_id)

    def read_cached(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        return []


class Room:
    """An appender with an open ledger, and what reads it."""

    def __init__(self, cache_bytes: int = 1 << 30) -> None:
        self.bookie: Any = StubBookie()
        self.chain = LedgerChain()
        self.cache = TailCache(cache_bytes)
        self.appender = Appender(
            "bench",
            self.chain,
            self.cache,
            RealClock(),
            ManagedLedgerSettings(),
            wake=lambda: None,
            first_needed=lambda ledger_id: 0,
        )
        self.appender.become(State.CREATING)
        self.appender.cache(True)
        self.appender.open_ledger(self.bookie, 1, "/topic")
        self.reads = LedgerReads(self.chain, self.cache, self.bookie)

    def fill(self, group: int = 100) -> None:
        append, context = self.appender.append, ("producer", 1, 1)
        for first in range(0, ENTRIES, group):
            for _ in range(group):
                append(BODY, context)
            self.bookie.on_durable(first + group - 1)

    def read_all(self, count: int = 100) -> None:
        place = Position(1, 0)
        while entries := self.reads.read_cached(place, count, 1 << 20):
            place = entries[-1].position.next()


def measure(
    name: str, prepare: Callable[[], Callable[[], None]], rounds: int, target_us: float | None
) -> None:
    best = float("inf")
    for _ in range(rounds):
        work = prepare()
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    us = best / ENTRIES * 1e6
    verdict = (
        "" if target_us is None else f"   target {target_us:.1f}  {'ok' if us <= target_us else 'MISSED'}"
    )
    print(f"{name:58s} {us:7.3f} us{verdict}")


def stub_alone() -> Callable[[], None]:
    append = StubWriter(1).append

    def work() -> None:
        for _ in range(ENTRIES):
            append(BODY)

    return work


def appending(group: int, cache_bytes: int = 1 << 30) -> Callable[[], Callable[[], None]]:
    def prepare() -> Callable[[], None]:
        room = Room(cache_bytes)
        return lambda: room.fill(group)

    return prepare


def reading(count: int, readers_before: int) -> Callable[[], Callable[[], None]]:
    def prepare() -> Callable[[], None]:
        room = Room()
        room.fill()
        for _ in range(readers_before):
            room.read_all(count)
        return lambda: room.read_all(count)

    return prepare


def acknowledging(order: list[int], group: int, *, tuples: bool = False) -> Callable[[], Callable[[], None]]:
    kind: Any = (lambda ledger, entry: (ledger, entry)) if tuples else Position
    groups = [[kind(1, e) for e in order[i : i + group]] for i in range(0, len(order), group)]

    def prepare() -> Callable[[], None]:
        chain = LedgerChain()
        chain.append(ChainLedger(1, ENTRIES, 0, 0))
        cursor = Acknowledgments(chain, (1, -1))

        def work() -> None:
            acknowledge = cursor.acknowledge
            for positions in groups:
                acknowledge(positions)
            assert cursor.mark_delete == (1, ENTRIES - 1)

        return work

    return prepare


def near_order(window: int) -> list[int]:
    """Acknowledgments as several consumers make them: each within a window of the others."""
    pick = random.Random(7)
    return [i for _, i in sorted((i + pick.random() * window, i) for i in range(ENTRIES))]


def shuffled() -> list[int]:
    order = list(range(ENTRIES))
    random.Random(7).shuffle(order)
    return order


def state_size(rounds: int) -> None:
    chain = LedgerChain()
    for i in range(1, 21):
        chain.append(ChainLedger(i, ENTRIES, 0, 0 if i == 20 else 1))
    cursor = Acknowledgments(chain, (1, -1))
    pick = random.Random(7)
    cursor.acknowledge((pick.randrange(1, 21), pick.randrange(1, ENTRIES)) for _ in range(500_000))
    best = float("inf")
    data = b""
    for _ in range(rounds):
        begin = time.process_time()
        data = encode(cursor.state(), 4 << 20).data
        best = min(best, time.process_time() - begin)
    entries = sum(last - first + 1 for _, first, last in cursor.acknowledged_ranges())
    print(f"state of {entries} of 1,000,000 acknowledged at random: {len(data)} bytes, {best * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    in_order = list(range(ENTRIES))
    measure("the stub's own append", stub_alone, rounds, None)
    measure("append + confirm, groups of 100", appending(100), rounds, 2.0)
    measure("append + confirm, groups of 1", appending(1), rounds, None)
    measure("append + confirm, groups of 100, cache full (evicting)", appending(100, 1 << 20), rounds, 2.0)
    measure("read_cached by 100, first reader", reading(100, 0), rounds, 0.5)
    measure("read_cached by 100, later readers", reading(100, 1), rounds, 0.5)
    measure("read_cached by 1, first reader", reading(1, 0), rounds, None)
    measure("acknowledge in order, 100 at a time", acknowledging(in_order, 100), rounds, 1.0)
    measure("acknowledge in order, 1 at a time", acknowledging(in_order, 1), rounds, 1.0)
    measure("acknowledge in order, 100 plain pairs", acknowledging(in_order, 100, tuples=True), rounds, 1.0)
    measure(
        "acknowledge within a window of 200, 100 at a time", acknowledging(near_order(200), 100), rounds, 1.5
    )
    measure("acknowledge within a window of 200, 1 at a time", acknowledging(near_order(200), 1), rounds, 1.5)
    measure("acknowledge all shuffled, 100 at a time", acknowledging(shuffled(), 100), rounds, 1.5)
    measure("acknowledge all shuffled, 1 at a time", acknowledging(shuffled(), 1), rounds, 1.5)
    state_size(rounds)


if __name__ == "__main__":
    main()
