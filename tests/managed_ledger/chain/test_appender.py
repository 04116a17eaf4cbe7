"""The writing end by itself, with a bookie that confirms when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from geminga.bookie.running.bookie import Bookie
from geminga.clock import RealClock
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
    def create_ledger(self, ledger_id: int, *, on_durable: Callable[[int], None], **_: Any) -> Writer:
        self.on_durable = on_durable
        return Writer(ledger_id)


def test_a_new_ledger_does_not_move_the_last_confirmed_entry() -> None:
    bookie = ManualBookie()
    settings = ManagedLedgerSettings(ledger_entries_max=2, rollover_min_ms=0)
    appender = Appender(
        "t",
        LedgerChain(),
        TailCache(),
        RealClock(),
        settings,
        wake=lambda: None,
        first_needed=lambda ledger_id: 0,
    )
    appender.become(State.CREATING)
    appender.open_ledger(cast("Bookie", bookie), 1, "/t")
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
