"""A journal that follows the loop's turns: what nobody waits for shares a sync, what somebody waits for does
not wait, and nothing is lost or late when the loop sleeps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from geminga.bookie.journal.journal import SPACED_ENTRIES_MAX
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.broker.flow.broker_figures import LoopTurns
from geminga.broker.flow.outbox import Outgoing
from geminga.server.loop_edges import LoopEdges
from tests.bookie.journal.test_group_wait import LONG_S, Owner, running

HUNG_S = 100
"""Less than the distance. Thousands of syncs on a busy disk took 20 s."""
SPACED = BookieSettings(journal_spacing_s=LONG_S)


@asynccontextmanager
async def following(path: Path, settings: BookieSettings = SPACED) -> AsyncIterator[tuple[Bookie, Owner]]:
    """A bookie that has written its first group, so that the next one would have to keep its distance."""
    async with running(path, settings) as bookie:
        with trio.fail_after(HUNG_S), LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
            owner = Owner(bookie)
            owner.writer.append(b"first")
            await owner.until_durable(0)
            yield bookie, owner


async def test_entries_that_nobody_waits_for_share_a_group_with_the_first_that_somebody_waits_for(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (bookie, owner):
        for _ in range(5):
            owner.writer.append(b"sent on")
            await trio.sleep(0.001)
        # The wish for the first entry may come after its group has begun, and holds for the next one then.
        assert owner.durable <= 1
        owner.writer.append(b"waited for")
        bookie.journals.hurry()
        await owner.until_durable(6)
        assert bookie.statistics().journal_groups <= 3


async def test_each_entry_that_somebody_waits_for_is_a_group_at_once(tmp_path: Path) -> None:
    async with following(tmp_path) as (bookie, owner):
        for number in range(1, 20):
            owner.writer.append(b"waited for")
            bookie.journals.hurry()
            await owner.until_durable(number)
        assert bookie.statistics().journal_groups == 20


async def test_many_entries_are_worth_a_group(tmp_path: Path) -> None:
    async with following(tmp_path) as (bookie, owner):
        for _ in range(2 * SPACED_ENTRIES_MAX):
            owner.writer.append(b"sent on")
            await trio.lowlevel.checkpoint()
        await owner.until_durable(SPACED_ENTRIES_MAX)
        assert bookie.statistics().journal_groups <= 4


async def test_the_distance_ends_by_itself(tmp_path: Path) -> None:
    async with following(tmp_path, BookieSettings(journal_spacing_s=0.05)) as (_, owner):
        for number in range(1, 4):
            owner.writer.append(b"sent on")
            await owner.until_durable(number)


async def test_a_distance_that_is_over_while_it_is_looked_at_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread once slept for ever, as Python's queue takes a time that has passed for no time at all."""
    monkeypatch.setattr("geminga.bookie.journal.journal._monotonic_s", lambda: 100.0)
    async with following(tmp_path, BookieSettings(journal_spacing_s=1e-6)) as (_, owner):
        for number in range(1, 3000):
            owner.writer.append(b"sent on")
            await owner.until_durable(number)


async def test_a_journal_that_stops_writes_what_keeps_its_distance(tmp_path: Path) -> None:
    async with following(tmp_path) as (bookie, owner):
        owner.writer.append(b"sent on")
        await trio.sleep(0.001)
        bookie.journals.of(1).stop()
        await owner.until_durable(1)


async def test_the_end_of_turns_ends_the_distance(tmp_path: Path) -> None:
    """A bookie is closed after that, which waits for what is queued."""
    async with running(tmp_path, SPACED) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S):
            with LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
                owner.writer.append(b"first")
                await owner.until_durable(0)
                for _ in range(5):
                    owner.writer.append(b"kept back")
                    await trio.sleep(0.001)
            await owner.until_durable(5)


async def test_without_turns_no_group_keeps_a_distance(tmp_path: Path) -> None:
    async with running(tmp_path, SPACED) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S):
            for number in range(3):
                owner.writer.append(b"alone")
                await owner.until_durable(number)
