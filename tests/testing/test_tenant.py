"""Tenants within programs that have threads and clocks of their own."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

import geminga
from geminga.testing.async_tenant import AsyncTenant
from geminga.testing.tenant import Tenant

DAY_MS = 86_400_000
LOOKS_MAX = 100
WAITS_S = 10.0
"""So that what is held up fails, and does not hang."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[geminga.ChildBroker]:
    with geminga.ChildBroker(arguments=["--clock", "virtual", "--chaos"]) as process:
        yield process


@pytest.fixture
def tenant(broker: geminga.ChildBroker) -> Iterator[Tenant]:
    made = Tenant(broker, f"tenant-{next(_numbers)}")
    yield made
    made.close()


async def advance_beside(tenant: Tenant, go_on: threading.Event) -> None:
    """While the loop's threads wait for `go_on`."""
    moved = await AsyncTenant(tenant).advance("1d")
    assert moved["to_ms"] - moved["from_ms"] == DAY_MS
    go_on.set()


def test_an_application_that_fills_the_threads_of_asyncio_does_not_hold_up_its_test(tenant: Tenant) -> None:
    go_on = threading.Event()

    async def run() -> None:
        count = min(32, (os.cpu_count() or 1) + 4)
        waiting = [asyncio.create_task(asyncio.to_thread(go_on.wait, WAITS_S)) for _ in range(count)]
        await asyncio.sleep(0)
        await advance_beside(tenant, go_on)
        assert all(await asyncio.gather(*waiting)), "none gave up before the move was over"

    asyncio.run(run())


async def test_an_application_that_fills_the_threads_of_trio_does_not_hold_up_its_test(
    tenant: Tenant,
) -> None:
    go_on, waited = threading.Event(), []

    async def wait() -> None:
        waited.append(await trio.to_thread.run_sync(go_on.wait, WAITS_S))

    async with trio.open_nursery() as nursery:
        for _ in range(int(trio.to_thread.current_default_thread_limiter().total_tokens)):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await advance_beside(tenant, go_on)
    assert all(waited)
