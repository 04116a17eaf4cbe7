"""What an index with buckets takes while it has too few messages for one: 4.5 bytes each, and 512 KiB."""

from __future__ import annotations

import random

import pytest

from geminga.limits import KIB
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from tests.tracker.bucket_world import HandClock

DAY_MS = 86_400_000
MESSAGES = 49_999
LEDGER_ENTRIES = 20_000


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("spread_ms", [60_000, DAY_MS - 1000])
def test_a_tail_keeps_within_its_bytes_also_while_some_of_it_falls_due(spread_ms: int, step: int) -> None:
    """Every message is delayed, or every other one; they fall due one after the other."""
    chance, clock, frozen = random.Random(1), HandClock(), list[Frozen]()
    clock.ms = start_ms = 1_700_000_000_000
    index = DelayedIndex(clock, IndexSettings(strict=True, exact=True, is_shared=True), frozen.append)
    view = View(index)

    def add(number: int, from_ms: int) -> None:
        due_ms = clock.ms + from_ms + chance.randrange(spread_ms)
        ledger_id, entry_id = divmod(number * step, LEDGER_ENTRIES)
        assert index.append_run(10 + ledger_id, entry_id, (due_ms,))

    for number in range(MESSAGES):
        add(number, 1000)
    assert len(index) == MESSAGES
    assert index.memory_bytes() <= 4.5 * MESSAGES + 512 * KIB
    taken = 0
    for moment in range(1, 101):
        clock.ms = start_ms + 1000 + spread_ms * moment // 100
        while due := view.take_due(100):
            taken += len(due)
        assert index.memory_bytes() <= 4.5 * len(index) + 512 * KIB, moment
    assert (taken, frozen) == (MESSAGES, [])
