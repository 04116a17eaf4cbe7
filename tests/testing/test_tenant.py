"""Tenants within programs that have threads and clocks of their own."""

from __future__ import annotations

import asyncio
import datetime
import functools
import itertools
import os
import threading
import time
from collections.abc import Iterator

import pulsar
import pytest
import trio
import trio.testing

import geminga
from geminga.testing.async_tenant import AsyncTenant
from geminga.testing.connected import AHEAD_MS
from geminga.testing.requests import ask
from geminga.testing.tenant import NotDelivered, Tenant

DAY_MS = 86_400_000
WALL_STEP_MS_MAX = 1000
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


def test_waiting_ends_though_a_library_has_stopped_the_clocks_of_the_program(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pulsar.Client(tenant.service_url)
    client.subscribe(tenant.topic("t"), "app")
    client.create_producer(tenant.topic("t")).send(b"x")
    looks = itertools.count()

    def stopped() -> float:
        assert next(looks) < LOOKS_MAX, "waits for ever"
        return 1.0

    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", stopped)
        with pytest.raises(NotDelivered, match="1 entries are not acknowledged"):
            tenant.assert_delivered("t", "app", timeout_s=0.1)
    client.close()


def test_how_far_ahead_is_by_the_brokers_word(
    broker: geminga.ChildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that sets the program's clock may do so before the first test of a session."""
    for at_ms in (1, 2**42):
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", functools.partial(int, at_ms * 1_000_000))
            geminga.connected(broker.service_url, broker.web_url)
        clock = ask(broker.web_url, "GET", "/geminga/clock")
        # The machine's time is set by others in small steps, and the broker's runs on without them.
        ahead_ms = clock["now_ms"] - clock["wall_ms"] + WALL_STEP_MS_MAX
        assert AHEAD_MS <= ahead_ms < AHEAD_MS + 30 * DAY_MS


def test_what_is_not_acknowledged_at_the_next_event_is_told(tenant: Tenant) -> None:
    client = pulsar.Client(tenant.service_url)
    client.subscribe(tenant.topic("t"), "app", pulsar.ConsumerType.Shared)
    client.create_producer(tenant.topic("t")).send(b"x", deliver_after=datetime.timedelta(days=1))
    with pytest.raises(NotDelivered, match="not acknowledged within 0.1 s of a due time: .*/t / app"):
        tenant.advance_to_next(until_acknowledged=True, timeout_s=0.1)
    client.close()
