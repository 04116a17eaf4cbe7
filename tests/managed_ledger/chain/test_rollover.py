"""When a ledger is full and which may go: Pulsar's rules as a table."""

from __future__ import annotations

import pytest

from geminga.managed_ledger.chain.ledger_chain import ChainLedger
from geminga.managed_ledger.chain.rollover import MINUTE_MS, ManagedLedgerSettings, is_full, ledgers_to_drop

MIB = 1 << 20


@pytest.mark.parametrize(
    ("entries", "size_bytes", "age_minutes", "full"),
    [
        (50_000, 0, 11, True),
        (49_999, 0, 11, False),
        (50_000, 0, 10, False),
        (1, 2048 * MIB, 11, True),
        (1, 2048 * MIB - 1, 11, False),
        (1, 2048 * MIB, 5, False),
        (1, 1, 240, True),
        (1, 1, 239, False),
    ],
)
def test_full_by_the_default_bounds(entries: int, size_bytes: int, age_minutes: int, full: bool) -> None:
    assert is_full(ManagedLedgerSettings(), entries, size_bytes, age_minutes * MINUTE_MS) is full


def test_without_a_minimum_age_a_bound_is_enough() -> None:
    settings = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)
    assert is_full(settings, 10, 0, 0)
    assert not is_full(settings, 9, 0, 0)


LEDGERS = [ChainLedger(i, 10, 100, 1000 * i) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("time_ms", "size_bytes", "now_ms", "dropped"),
    [
        (0, 0, 3000, 3),
        (-1, -1, 10**9, 0),
        (500, -1, 2501, 2),
        (500, -1, 2500, 1),
        (-1, 250, 3000, 1),
        (-1, 150, 3000, 2),
        (-1, 50, 3000, 3),
        (10**6, 150, 3000, 2),
    ],
)
def test_retention(time_ms: int, size_bytes: int, now_ms: int, dropped: int) -> None:
    settings = ManagedLedgerSettings(retention_time_ms=time_ms, retention_size_bytes=size_bytes)
    assert ledgers_to_drop(settings, LEDGERS, 350, now_ms) == dropped
