"""The health check's round trips, on real parts and a simulated disk, under a clock that jumps."""

from __future__ import annotations

import pytest
import trio

from geminga.broker.operator import health
from geminga.broker.operator.health import FRESH_S, HealthCheck, HealthReport
from geminga.managed_ledger.orphans import find_orphan_ledgers
from geminga.metadata import records
from tests.broker.topics_rig import TopicsRig, open_topics, topic_of


async def nothing_gone() -> str:
    return ""


async def test_answers_share_one_round_trip_a_second(autojump_clock: trio.testing.MockClock) -> None:
    async with open_topics() as rig:
        check = HealthCheck(rig.rooms, "/data", nothing_gone)
        reports: list[HealthReport] = []

        async def ask() -> None:
            reports.append(await check())

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert [report.status for report in reports] == ["ok"] * 100
        assert check.round_trips == 1
        await trio.sleep(FRESH_S / 2)
        await check()
        assert check.round_trips == 1
        await trio.sleep(FRESH_S)
        assert (await check()).round_trip_ms is not None
        assert check.round_trips == 2


async def test_its_ledger_does_not_grow_and_is_no_topic(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ENTRIES_MAX", 3)
    async with open_topics() as rig:
        await topic_of(rig)
        topics = rig.rooms.metadata.children(records.MANAGED_LEDGERS)
        check = HealthCheck(rig.rooms, "/data", nothing_gone)
        sizes = []
        for _ in range(10):
            assert (await check()).status == "ok"
            sizes.append(len(find_orphan_ledgers(rig.rooms.metadata)))
            await trio.sleep(FRESH_S)
        assert sizes == [1] * 10, (
            "it is the only ledger that no topic names, so a crash leaves it to the sweep"
        )
        assert rig.rooms.metadata.children(records.MANAGED_LEDGERS) == topics
        await check.close()
        assert find_orphan_ledgers(rig.rooms.metadata) == []
        assert (await check()).status == "unhealthy"


async def unhealthy(rig: TopicsRig, check: HealthCheck) -> str:
    started_s = trio.current_time()
    report = await check()
    assert report.status == "unhealthy"
    assert report.round_trip_ms is None
    assert trio.current_time() - started_s < 2
    return report.reasons[0]


async def test_a_disk_that_hangs_makes_it_unhealthy(autojump_clock: trio.testing.MockClock) -> None:
    async with open_topics(bookie_runs=False) as rig:
        check = HealthCheck(rig.rooms, "/data", nothing_gone)
        assert "within 1.5 s" in await unhealthy(rig, check)
        async with trio.open_nursery() as nursery:
            await nursery.start(rig.bookie.run)
            await trio.sleep(FRESH_S)
            assert (await check()).status == "ok"
            nursery.cancel_scope.cancel()


async def test_directories_that_are_gone_make_it_unhealthy(autojump_clock: trio.testing.MockClock) -> None:
    async def gone() -> str:
        return "/data/index"

    async with open_topics() as rig:
        check = HealthCheck(rig.rooms, "/data", gone)
        assert (await unhealthy(rig, check)).startswith("/data/index was removed")
        assert check.round_trips == 0


async def test_cancelling_the_one_that_looks_leaves_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_topics(bookie_runs=False) as rig:
        check = HealthCheck(rig.rooms, "/data", nothing_gone)
        reports: list[HealthReport] = []

        async def ask() -> None:
            reports.append(await check())

        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask)
        async with trio.open_nursery() as nursery:
            await nursery.start(rig.bookie.run)
            await ask()
            nursery.cancel_scope.cancel()
        assert [report.status for report in reports] == ["ok"]
