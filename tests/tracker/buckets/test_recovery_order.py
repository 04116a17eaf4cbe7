"""Buckets are taken over in the order of their ledgers: those that were published first are due first."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from geminga.errors import LedgerNotFound
from geminga.events.recording import unrecorded
from geminga.tracker.buckets.bucket_counts import Losses
from geminga.tracker.buckets.bucket_events import BucketEvents
from geminga.tracker.buckets.recovery import OPENED_AT_ONCE, Recovery
from geminga.tracker.buckets.unknown import UnknownLedgers
from geminga.tracker.format.stored_bucket import KeyRange, bucket_key, whole_ledgers

BUCKETS = 200


class EmptyStore:
    async def open(self, ledger_id: int, covered: KeyRange) -> Any:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        raise LedgerNotFound(f"{ledger_id}")


class NamedBuckets:
    """Properties that name buckets, none of which is there."""

    generation = 0
    store = EmptyStore()
    owner_text = "orders"

    def __init__(self) -> None:
        self.unknown = UnknownLedgers()
        self.losses = Losses()
        self.events = BucketEvents(unrecorded, "orders", "")

    def named(self) -> dict[str, int]:
        return {bucket_key(whole_ledgers(10 + n, 10 + n)): 1000 + n for n in reversed(range(BUCKETS))}

    def begin_recovery(self, ranges: dict[str, tuple[int, int]]) -> None:
        self.unknown.expect(ranges)

    def doom(self, key: str | None, ledger_id: int) -> None:
        pass


@pytest.mark.parametrize("attempt", range(5))
async def test_the_first_ledgers_are_known_first(attempt: int) -> None:
    known: list[int] = []
    buckets = NamedBuckets()
    recovery = Recovery(
        buckets,  # type: ignore[arg-type]
        wanted=lambda members: {},
        on_known=lambda first, last: note(first),
    )

    def note(ledger_id: int) -> None:
        assert not buckets.unknown.has(ledger_id)
        known.append(ledger_id - 10)
        unknown = [n for n in range(BUCKETS) if buckets.unknown.has(10 + n)]
        assert sorted(known + unknown) == list(range(BUCKETS))

    assert [n for n in range(10 + BUCKETS + 5) if buckets.unknown.has(n)] == list(range(10, 10 + BUCKETS))
    await recovery.run()
    assert sorted(known) == list(range(BUCKETS))
    assert buckets.losses.by["start"] == BUCKETS
    assert max(abs(place - n) for place, n in enumerate(known)) < OPENED_AT_ONCE
    assert not buckets.unknown.has(10)
