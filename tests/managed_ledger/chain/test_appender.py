"""The writing end by itself, with a bookie that confirms when the test says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from geminga.bookie.running.bookie import Bookie
from geminga.clock import RealClock
from geminga.errors import ReadOnly, StorageError
from geminga.managed_ledger.chain.appender import Appender
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.position import Position


class Writer:
    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry_id = 0

    def append_run(self, bodies: list[bytes]) -> int:
        self.next_entry_id += len(bodies)
        return self.next_entry_id - len(bodies)

    def close(self) -> None:
        pass


class ManualBookie:
    def create_ledger(
        self,
        ledger_id: int,
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        **_: Any,
    ) -> Writer:
        self.on_durable = on_durable
        self.on_failed = on_failed
        self.writer = Writer(ledger_id)
        return self.writer


def opened(bookie: ManualBookie, cache: TailCache, settings: ManagedLedgerSettings) -> Appender:
    """An appender that writes to ledger 1."""
    appender = Appender(
        "t",
        LedgerChain(),
        cache,
        RealClock(),
        settings,
        wake=lambda: None,
        first_needed=lambda ledger_id: 0,
    )
    appender.become(State.CREATING)
    appender.open_ledger(cast("Bookie", bookie), 1, "/t")
    return appender


def test_a_new_ledger_does_not_move_the_last_confirmed_entry() -> None:
    bookie = ManualBookie()
    settings = ManagedLedgerSettings(ledger_entries_max=2, rollover_min_ms=0)
    appender = opened(bookie, TailCache(), settings)
    assert appender.last_confirmed == Position(1, -1), "the first ledger of an opening"
    appender.append([b"one"], None)
    appender.append([b"two"], None)
    bookie.on_durable(1)
    assert appender.last_confirmed == Position(1, 1)
    assert appender.state is State.ROLLING
    appender.become(State.CREATING)
    appender.open_ledger(cast("Bookie", bookie), 2, "/t")
    assert appender.last_confirmed == Position(1, 1), "nothing of the second one is durable"
    appender.append([b"three"], None)
    bookie.on_durable(0)
    assert appender.last_confirmed == Position(2, 0)


def cached(cache: TailCache, first: int) -> list[bytes]:
    return [entry.body for entry in cache.read(1, first, 99, 1 << 20)]


def test_the_tail_cache_shows_what_is_appended_behind_what_was_already_on_its_way() -> None:
    bookie, cache = ManualBookie(), TailCache()
    appender = opened(bookie, cache, ManagedLedgerSettings())
    appender.append([b"one"], None)
    appender.cache(True)
    appender.append([b"two", b"three"], None)
    bookie.on_durable(0)
    assert cached(cache, 0) == cached(cache, 1) == []
    bookie.on_durable(2)
    assert (cached(cache, 0), cached(cache, 1)) == ([], [b"two", b"three"])
    appender.append([bytes(1 << 16)] * 2, None)
    appender.append([bytes(1 << 16)] * 2, None)
    bookie.on_durable(6)
    assert cached(cache, 1) == [b"two", b"three", *[bytes(1 << 16)] * 4]
    appender.append([b"four"], None)
    appender.cache(False)
    assert cached(cache, 1) == []
    appender.append([b"five"], None)
    appender.cache(True)
    appender.append([b"six"], None)
    bookie.on_durable(9)
    assert [cached(cache, first) for first in (7, 8, 9)] == [[], [], [b"six"]]


def test_entries_that_failed_are_not_shown_under_the_ids_of_those_that_follow() -> None:
    bookie, cache = ManualBookie(), TailCache()
    appender = opened(bookie, cache, ManagedLedgerSettings())
    appender.cache(True)
    appender.append([b"one"], None)
    bookie.on_durable(0)
    appender.append([b"failed"], None)
    appender.append([b"failed", b"failed"], None)
    bookie.writer.next_entry_id = 1
    bookie.on_failed(ReadOnly("the disk is full"))
    assert cached(cache, 0) == [b"one"]
    appender.append([b"two", b"three"], None)
    bookie.on_durable(2)
    assert cached(cache, 0) == [b"one", b"two", b"three"]


def test_a_fenced_appender_shows_and_keeps_nothing_that_was_on_its_way() -> None:
    bookie, cache = ManualBookie(), TailCache()
    appender = opened(bookie, cache, ManagedLedgerSettings())
    appender.cache(True)
    appender.append([b"one"], None)
    bookie.on_durable(0)
    body = bytes(1000)
    holders = sys.getrefcount(body)
    appender.append([body], None)
    assert sys.getrefcount(body) == holders + 1
    appender.fence(StorageError("the disk is gone"))
    assert sys.getrefcount(body) == holders
    bookie.on_durable(1)
    assert cached(cache, 0) == [b"one"]
    assert cached(cache, 1) == []
