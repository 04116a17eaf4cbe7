"""Plays a lifetime case against our own broker: real parts on a simulated disk and clock, no connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from geminga.admin.api.table import router_for
from geminga.admin.http.router import Request, Response, Router
from geminga.broker.dispatch.consumer import SHARED, SUBSCRIPTION_TYPES, Consumer
from geminga.broker.operator.view import Process, View
from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.policies.values import InactiveTopic
from geminga.broker.subscription.subscription import Subscription
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.rooms import Rooms
from geminga.broker.topic.topic import Topic
from geminga.broker.topic.topics import Topics
from geminga.config.config import Config
from geminga.errors import GemingaError, NotAllowed, PeerError, ServerError
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.names import TopicName
from geminga.server.room_settings import default_policies
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Delivery
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topic.lifetime_recording import RECORDING, Step, place_of
from tests.broker.topics_rig import open_topics, send

NAMESPACE, TOPIC = "public/default", TopicName.parse("persistent://public/default/t")
CLIENT_ERRORS = {
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR: "ProducerBlockedQuotaExceededError",
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION: "ProducerBlockedQuotaExceededException",
    ServerError.TOPIC_TERMINATED: "TopicTerminated",
}


class Broker:
    """One broker without connections: requests go to its router, messages to its topic."""

    def __init__(self, rooms: Rooms, topics: Topics, router: Router) -> None:
        self.rooms = rooms
        self.topics = topics
        self.router = router
        self.producers_ahead_ms = 0
        """How much the clocks of producers are ahead of the broker's."""
        self._consumers: dict[str, list[tuple[Subscription, Consumer]]] = {}
        self._consumer_id = 0
        self._producer: Producer | None = None

    async def play(self, steps: list[Step]) -> list[Step]:
        return [step._replace(outcome=await getattr(self, step.what)(*step.arguments)) for step in steps]

    async def _topic(self) -> Topic:
        return await self.topics.get(TOPIC, create=True)

    async def _ask(self, method: str, path: str, body: Any = None) -> Response:
        root = (
            f"/admin/v2/namespaces/{NAMESPACE}" if path[0] == "N" else f"/admin/v2/persistent/{NAMESPACE}/t"
        )
        content = b"" if body is None else json.dumps(body).encode()
        try:
            response = await self.router(Request(method, root + path[1:], content))
            if response.parts is None:
                return response
            return response._replace(body=b"".join([part async for part in response.parts]), parts=None)
        except GemingaError as error:
            return Response(error.http_status)

    async def _json(self, path: str) -> Any:
        return json.loads((await self._ask("GET", path)).body)

    async def set(self, path: str, body: Any) -> int:
        return (await self._ask("POST", path, body)).status

    async def remove(self, path: str) -> int:
        return (await self._ask("DELETE", path)).status

    async def subscribe(self, name: str) -> int:
        return (await self._ask("PUT", f"T/subscription/{name}", "earliest")).status

    async def skip(self, name: str, count: int) -> int:
        return (await self._ask("POST", f"T/subscription/{name}/skip/{count}")).status

    async def skip_all(self, name: str) -> int:
        return (await self._ask("POST", f"T/subscription/{name}/skip_all")).status

    async def expire(self, name: str, seconds: int) -> int:
        return (await self._ask("POST", f"T/subscription/{name}/expireMessages/{seconds}")).status

    async def expire_all(self, seconds: int) -> int:
        return (await self._ask("POST", f"T/all_subscription/expireMessages/{seconds}")).status

    async def expire_at(self, name: str, index: int, excluded: bool = False) -> int:
        body = {**place_of(await self._json("T/internalStats"), index), "excluded": excluded}
        return (await self._ask("POST", f"T/subscription/{name}/expireMessages", body)).status

    async def truncate(self) -> int:
        return (await self._ask("DELETE", "T/truncate")).status

    async def terminate(self) -> int:
        return (await self._ask("POST", "T/terminate")).status

    async def unload(self) -> int:
        """Consumers come back by themselves, as clients do."""
        status = (await self._ask("PUT", "T/unload")).status
        for name, consumers in tuple(self._consumers.items()):
            for _ in range(len(consumers)):
                await self.connect(name)
        return status

    async def stats(self) -> int:
        return (await self._ask("GET", "T/stats")).status

    async def shown(self, path: str) -> Any:
        body = (await self._ask("GET", path)).body
        return json.loads(body) if body else None

    async def entries(self) -> int:
        return int((await self._json("T/internalStats"))["numberOfEntries"])

    async def backlog(self, name: str) -> int:
        return int((await self._json("T/stats"))["subscriptions"][name]["msgBacklog"])

    async def expired(self, name: str) -> int:
        return int((await self._json("T/stats"))["subscriptions"][name]["totalMsgExpired"])

    async def wait(self, seconds: int) -> None:
        await trio.sleep(seconds)

    async def attach(self) -> str:
        topic = await self._topic()
        self._producer = Producer(1, "stays", FakeOutbox(), message_bytes_max=2**22)  # type: ignore[arg-type]
        await topic.add_producer(self._producer, None)
        return "ok"

    async def detach(self) -> str:
        assert self._producer is not None
        (await self._topic()).producers.remove(self._producer)
        return "ok"

    async def publish(self, count: int, size: int, delay_s: int = 0) -> str:
        topic = await self._topic()
        producer = Producer(1, "p", FakeOutbox(), message_bytes_max=2**22)  # type: ignore[arg-type]
        try:
            await topic.add_producer(producer, None)
        except PeerError as error:
            return CLIENT_ERRORS[error.server_error]
        now_ms = self.rooms.clock.now_ms() + self.producers_ahead_ms
        due_ms = now_ms + delay_s * 1000 if delay_s else 0
        for number in range(count):
            topic.publishing.publish(
                producer, send(number, b"x" * size, publish_time_ms=now_ms, deliver_at_ms=due_ms)
            )
        durable = trio.Event()
        producer.when_idle(durable.set)
        await durable.wait()
        topic.producers.remove(producer)
        return "ok"

    async def acknowledge(self, name: str, indexes: list[int]) -> str:
        """Of what is not acknowledged yet, as a consumer that receives it all would count it."""
        ledger = (await self._topic()).ledger
        cursor = (await self._topic()).subscription(name).cursor
        places = [cursor.next_unacknowledged(ledger.next_position(cursor.mark_delete))]
        for _ in range(max(indexes)):
            places.append(cursor.next_unacknowledged(ledger.next_position(places[-1])))
        cursor.acknowledge([places[index] for index in indexes])
        return "ok"

    async def connect(self, name: str) -> str:
        await self._join(name, None)
        return "ok"

    async def _join(self, name: str, consumer_name: str | None) -> FakeOutbox:
        self._consumer_id += consumer_name is None
        outbox = FakeOutbox()
        command = pb.CommandSubscribe(
            topic=str(TOPIC),
            subscription=name,
            subType=SUBSCRIPTION_TYPES.index(SHARED),
            consumer_id=self._consumer_id,
            request_id=1,
            consumer_name=consumer_name or "c",
        )
        consumer = Consumer(command, outbox, protocol_version=20, address="127.0.0.1:1")  # type: ignore[arg-type]
        topic = await self._topic()
        subscription = await topic.subscribe(
            name, consumer, durable=True, initial="latest", start=None, subscription_properties={}
        )
        subscription.consumers.flow(consumer, 1000)
        self._consumers.setdefault(name, []).append((subscription, consumer))
        return outbox

    async def disconnect(self, name: str) -> str:
        for subscription, consumer in self._consumers.pop(name):
            subscription.remove_consumer(consumer)
        return "ok"

    async def receive(self, name: str, seconds: float) -> int:
        outbox = await self._join(name, None)
        await trio.sleep(seconds)
        return sum(type(command) is Delivery for command in outbox.commands)

    async def subscribe_again(self, name: str, times: int) -> int:
        allowed = 0
        for _ in range(times):
            with suppress(NotAllowed):
                await self._join(name, "again")
                await self.disconnect(name)
                allowed += 1
        return allowed


@asynccontextmanager
async def open_broker(*, by_broker_time: bool = False) -> AsyncIterator[Broker]:
    """A broker with the settings of the one that was recorded."""
    recorded = RECORDING.read().settings
    settings = BrokerSettings(
        trim_interval_s=int(recorded["retentionCheckIntervalInSeconds"]),
        expiry_interval_s=int(recorded["messageExpiryCheckIntervalInMinutes"]) * 60,
        quota_interval_s=int(recorded["backlogQuotaCheckIntervalInSeconds"]),
        inactive_topics_interval_s=int(recorded["brokerDeleteInactiveTopicsFrequencySeconds"]),
        subscription_expiry_interval_s=int(recorded["subscriptionExpiryCheckIntervalInMinutes"]) * 60,
        expires_by_broker_time=by_broker_time,
    )
    ledgers = ManagedLedgerSettings(
        ledger_entries_max=int(recorded["managedLedgerMaxEntriesPerLedger"]),
        rollover_min_ms=int(recorded["managedLedgerMinLedgerRolloverTimeMinutes"]) * 60_000,
    )
    inactive = InactiveTopic(
        recorded["brokerDeleteInactiveTopicsMode"],
        int(recorded["brokerDeleteInactiveTopicsMaxInactiveDurationSeconds"]),
        recorded["brokerDeleteInactiveTopicsEnabled"] == "true",
    )
    async with open_topics(settings, ledgers, EffectivePolicies(inactive_topic=inactive)) as rig:
        process = Process(None, None, None, None, None, int)  # type: ignore[arg-type]
        view = View(rig.rooms, rig.topics, None, Config(), 0, 0, process, default_policies)  # type: ignore[arg-type]
        await rig.topics.get(TOPIC, create=True)
        yield Broker(rig.rooms, rig.topics, router_for(view))
