"""No route looks at many rows between two turns of the loop, and those that look at many say so.

All routes are asked in a small broker and in one with far more topics, partitions, subscriptions, namespaces
and acknowledged ranges. Counted are the calls of functions, Python's and C's, in each step of each task: no
time. A step that exceeds `CALLS_MAX` walks without a checkpoint; a route that needs far more calls in the
large broker walks, and has to say what (`walks=` in its `router.add`).

What this cannot see: walks inside one call of C (a long list sorted, joined or encoded), rows that cost less
than `CALLS_MAX / MANY` calls, rows that are not made here (messages, delayed messages, clients), and routes
whose request is refused: those without a mark are asked without a body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import pytest
import trio
from trio.testing import MockClock

from geminga.admin.api.table import router_for
from geminga.admin.http.router import Request, Response, Route, Router
from geminga.broker.connection.connection import Connections
from geminga.broker.flow.statistics import MemoryStatistics
from geminga.broker.operator.health import HealthReport
from geminga.broker.operator.view import Process, View
from geminga.config.config import Config
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.metadata.records import TenantRecord
from geminga.names import NamespaceName, TopicName
from geminga.server.room_settings import default_policies
from tests.broker.topics_rig import TOPIC, TopicsRig, open_topics, publish
from tests.calls import CALLS_MAX, FEW, GROWTH_MIN, MANY, Calls

UNSAVED = ManagedLedgerSettings(cursor_persist_interval_ms=3_600_000)
"""The cursors are written down in turns of their own, and not by the request that happens to be counted."""


class Asked(NamedTuple):
    status: int
    longest: int
    total: int


class Broker(NamedTuple):
    rig: TopicsRig
    router: Router
    calls: Calls

    async def ask(self, method: str, path: str, body: bytes = b"") -> Asked:
        """The whole answer is drawn."""
        self.calls.begin()
        try:
            response = await self.router(Request(method, path, body))
            if response.parts is not None:
                async for _ in response.parts:
                    await trio.lowlevel.checkpoint()  # as sending a part is
            status = response.status
        except Exception as error:
            status = getattr(error, "http_status", 500)
        finally:
            longest, total = self.calls.end()
        return Asked(status, longest, total)


@asynccontextmanager
async def open_broker(rows: int) -> AsyncIterator[Broker]:
    """`rows` loaded topics, partitions that nobody has used, subscriptions of one topic, acknowledged ranges,
    tenants, and namespaces.
    """
    async with open_topics(ledger_settings=UNSAVED) as rig:
        process = Process(lambda: MEMORY, memory_in_slices, None, well, None, int)  # type: ignore[arg-type]
        connections = Connections(rig.topics, rig.rooms, service_url=lambda _: "pulsar://h", generation=1)
        view = View(rig.rooms, rig.topics, connections, Config(), 0, 0, process, default_policies)
        await publish(rig, 2 * rows)
        wide = await rig.topics.get(TOPIC, create=False)
        for number in range(rows):
            await wide.create_subscription(f"s{number}", initial="earliest")
            name = TopicName.parse(f"persistent://public/default/t{number}")
            await (await rig.topics.get(name, create=True)).create_subscription("s0")
            await rig.rooms.namespaces.create_tenant(
                f"tenant{number}", TenantRecord(admin_roles=[], allowed_clusters=["standalone"])
            )
            await rig.rooms.namespaces.create(NamespaceName("public", f"n{number}"))
        cursor = wide.subscriptions["s0"].cursor
        ledger_id = wide.ledger.last_confirmed.ledger_id
        cursor.acknowledge([(ledger_id, entry) for entry in range(1, 2 * rows, 2)])
        await rig.topics.catalog.create_partitioned(PARTED, rows)
        calls = Calls()
        trio.lowlevel.add_instrument(calls)
        yield Broker(rig, router_for(view), calls)


PARTED = TopicName.parse("persistent://public/default/parted")
PARAMETERS = {
    "tenant": "public",
    "namespace": "default",
    "subscription": "s0",
    "bundle": "0x00000000_0x40000000",
    "cluster": "standalone",
    "broker": "localhost:0",
    "seconds": "1",
    "timestamp": "1",
    "count": "1",
    "group": "g",
    "name": "ttlDurationDefaultInSeconds",
    "value": "7",
}
BODIES = {
    "messageTTL": b"60",
    "backlogQuota": b'{"limitSize":1000,"policy":"producer_request_hold"}',
    "replicatedSubscriptionStatus": b"true",
    "properties": b'{"a":"b"}',
}
MEMORY = MemoryStatistics(budget_bytes=1, resident_bytes=1, rocksdb_buffer_bytes=0, parts=[])


def memory_in_slices() -> Generator[None, None, MemoryStatistics]:
    yield
    return MEMORY


async def well() -> HealthReport:
    return HealthReport(status="ok", reasons=[], checked_ms=0)


ORDER = ("GET", "PUT", "POST", "DELETE")
NOT_ASKED = {
    "/geminga/events": "it does not end",
    "/geminga/openapi.json": "a thread makes it",
    "/metrics": "the page has a test of its own, and needs the whole process",
}
"""Routes of what a test like this does not have, and why."""


def requests(router: Router) -> list[tuple[Route, str]]:
    """Each route with its paths: of a topic with subscriptions, and of one with partitions."""
    found = []
    for route in sorted(router.routes(), key=lambda one: (ORDER.index(one.method), -len(one.pattern))):
        if route.pattern in NOT_ASKED or _is_another_policy(route):
            continue
        for topic in ("t", "parted") if "{topic}" in route.pattern else ("t",):
            path = route.pattern
            for name, value in {**PARAMETERS, "topic": topic}.items():
                path = path.replace(f"{{{name}}}", value)
            if route.method == "PUT" and route.pattern.endswith("/subscription/{subscription}"):
                path = path.replace("/s0", "/new")
            if "antiAffinity" in path:
                path += "?tenant=public"
            found.append((route, path))
    return found


def _is_another_policy(route: Route) -> bool:
    """All policies have the handlers of one."""
    return isinstance(route.handler, partial) and not route.pattern.endswith("/messageTTL")


async def ask_all(rows: int) -> dict[tuple[str, str, str], Asked]:
    found = {}
    async with open_broker(rows) as broker:
        asked = requests(broker.router)
        for route, path in asked:
            bodies = {**BODIES, "partitions": b"%d" % (rows + 5)}
            body = bodies.get(path.rpartition("/")[2], b"") if route.method in ("PUT", "POST") else b""
            found[route.method, path, route.walks] = await broker.ask(route.method, path, body)
    return found


KNOWN = {
    ("DELETE", "/admin/v2/persistent/public/default/t"): "one transaction has the records of all its cursors",
    ("GET", "/geminga/topics/persistent/public/default/parted"): "it draws links to at most 200 partitions",
}
"""Beyond `CALLS_MAX`, with the reason."""
BOUNDS = {("GET", "/"): 2 * CALLS_MAX}
"""Where a bounded step, such as the tables of at most so many rows, comes near `CALLS_MAX`."""
SEEN_MIN = 50


def test_no_route_walks_without_turns_for_others_and_those_that_walk_say_so() -> None:
    trio.run(ask_all, 1, clock=MockClock(autojump_threshold=0))  # what is imported first is not counted
    few, many = (trio.run(ask_all, rows, clock=MockClock(autojump_threshold=0)) for rows in (FEW, MANY))
    too_long = {
        key[:2]: result for key, result in many.items() if result.longest > BOUNDS.get(key[:2], CALLS_MAX)
    }
    assert too_long.keys() == KNOWN.keys(), too_long
    growing = {key: many[key].total - few[key].total for key in many}
    unmarked = {key: more for key, more in growing.items() if not key[2] and more > GROWTH_MIN}
    assert unmarked.keys() <= {(*key, "") for key in KNOWN}, "they walk, and do not say what (`walks=`)"
    assert not [key for key, result in many.items() if key[2] and result.status == 500]
    # The other direction, as far as this broker goes: most of what has a mark is seen to walk.
    seen = {key[:2] for key, more in growing.items() if key[2] and more > GROWTH_MIN}
    assert len(seen) >= SEEN_MIN, seen


@pytest.mark.parametrize("at_once", [25, 10_000])
def test_a_handler_without_turns_is_seen(at_once: int) -> None:
    """The instrument itself: rows that cost 20 calls each, and turns after so many of them."""

    async def ask() -> Asked:
        async def walk(request: Request) -> Response:
            for number in range(1000):
                for _ in range(20):
                    abs(number)
                if number % at_once == 0:
                    await trio.lowlevel.checkpoint()
            return Response(200)

        calls = Calls()
        trio.lowlevel.add_instrument(calls)
        router = Router()
        router.add("GET", "/walk", walk)
        return await Broker(None, router, calls).ask("GET", "/walk")  # type: ignore[arg-type]

    asked = trio.run(ask)
    assert asked.total > 20_000
    assert (asked.longest > CALLS_MAX) == (at_once == 10_000)
