"""Defects that Pulsar's trackers had or have, where no other test of ours is about them. README.md beside it
lists all, with their tests; here is also held that what it names exists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geminga.position import Position
from geminga.tracker.buckets import sealing
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from tests.tracker import bucket_world
from tests.tracker.bucket_world import World
from tests.tracker.taking import take

TESTS = Path(__file__).parent.parent


class HandClock:
    ms = 0

    def worker(self, name: str) -> None:
        return None

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


@pytest.mark.parametrize("keeps_buckets", [False, True])
def test_ledgers_may_go_back(keeps_buckets: bool) -> None:
    """testAddMessageWithNonMonotonicLedgerIds; and further back, before what the growing bucket covers."""
    clock = HandClock()
    frozen: list[Frozen] = []
    settings = IndexSettings(tick_ms=1, strict=True, exact=keeps_buckets)
    index = DelayedIndex(clock, settings, frozen.append if keeps_buckets else None)
    view = View(index)
    places = [(100, 0), (100, 1), (101, 0), (101, 1), (100, 2), (99, 5), (101, 2)]
    for n, (ledger_id, entry_id) in enumerate(places):
        assert view.add(Position(ledger_id, entry_id), 1000 + n)
        assert len(view) == n + 1
    if keeps_buckets:
        index.feed.freeze_all()
        assert [(f.start_ledger, f.end_ledger) for f in frozen] == [(99, 99), (100, 100), (100, 101)]
    assert all(map(view.contains, places))
    clock.ms = 2000
    assert take(view, 99) == sorted(places)


def test_the_count_is_kept_and_not_counted() -> None:
    """PR 23611 was taken back from 4.0 because each add had the count counted (pull 24429)."""

    def calls_of_a_count(ledgers: int) -> int:
        view: View = View(DelayedIndex(HandClock(), IndexSettings(tick_ms=1)))
        for ledger_id in range(ledgers):
            view.add_many(ledger_id, [0, 1, 5], [1000, 5000, 2000])
        calls = 0

        def count_call(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count_call)
        found = len(view)
        sys.setprofile(None)
        assert found == 3 * ledgers
        return calls

    assert calls_of_a_count(1) == calls_of_a_count(500)


def test_sealing_and_merging_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """issues/24603: sorting, cutting and encoding stalled the dispatcher, 1.5 s of it were seen."""
    off_loop: list[str] = []
    at_once = bucket_world.at_once

    async def elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
        off_loop.append(function.__name__)
        return await at_once(function, *arguments)

    monkeypatch.setattr(bucket_world, "at_once", elsewhere)
    encode = sealing.encode_bucket

    def encode_checked(*arguments: Any) -> Any:
        assert off_loop[-1:] == ["_encode"], "a bucket was encoded on the loop"
        return encode(*arguments)

    monkeypatch.setattr(sealing, "encode_bucket", encode_checked)
    world = World(1)

    async def script(world: World) -> None:
        for _ in range(5):
            await world.seal(10)
        await world.settled()

    assert world.run(script)
    assert off_loop.count("_encode") >= 5
    assert {"step", "_finish"} <= set(off_loop), "merges too"


def test_what_the_page_names_exists() -> None:
    page = (TESTS / "tracker" / "README.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 90
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"def {test}\(|^{test} = ", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert not missing
