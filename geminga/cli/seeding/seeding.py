"""Applies a seed to a running broker: over its admin API, then as a client that publishes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

import trio

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.client.client import Client, open_client
from geminga.cli.client.producer import Attributes
from geminga.cli.messages.produce import java_hash
from geminga.cli.seeding.seed_file import Message, Policies, Seed, Topic
from geminga.client.admin import namespace_path, topic_path
from geminga.clock import RealClock

SEND_TURN: Final = 1000
"""Messages after which the task gives others a turn."""


def create(seed: Seed, admin: Admin) -> None:
    """Tenants, namespaces, topics and subscriptions; those that exist stay, and policies are set anyway.
    Raises RequestFailed.
    """
    clusters = admin.call("GET", "/admin/v2/clusters")
    for tenant in seed.tenants:
        _ensure(admin, f"/admin/v2/tenants/{tenant}", {"allowedClusters": clusters, "adminRoles": []})
    for namespace, policies in seed.namespaces:
        path = namespace_path(namespace)
        _ensure(admin, path, {})
        _set_policies(admin, path, policies)
    for topic in seed.topics:
        path = topic_path(topic.name)
        if topic.partitions:
            _ensure(admin, f"{path}/partitions", topic.partitions)
            _check_partitions(admin, path, topic)
        else:
            _ensure(admin, path, None)
        _set_policies(admin, path, topic.policies)
        for subscription in topic.subscriptions:
            _ensure(admin, f"{path}/subscription/{quote(subscription, safe='')}", None)


def _ensure(admin: Admin, path: str, body: object) -> None:
    try:
        admin.call("PUT", path, body)
    except RequestFailed as error:
        if not error.status.startswith("409"):
            raise RequestFailed(f"PUT {path}: {error}", error.status) from None


def _check_partitions(admin: Admin, path: str, topic: Topic) -> None:
    found = admin.call("GET", f"{path}/partitions")["partitions"]
    if found != topic.partitions:
        raise RequestFailed(
            f"{topic.name} is there with {found} partitions, and the seed asks for {topic.partitions}: "
            "delete it, or empty the broker with 'geminga snapshot reset'"
        )


def _set_policies(admin: Admin, path: str, policies: Policies) -> None:
    for name, body in policies.items():
        # Pulsar takes a topic's TTL as a parameter, a namespace's as the body.
        query = {name: body} if name == "messageTTL" else {}
        try:
            admin.call("POST", f"{path}/{quote(name, safe='/')}", body, **query)
        except RequestFailed as error:
            raise RequestFailed(f"policy {name}: POST {path}/{name}: {error}", error.status) from None


def publish(seed: Seed, url: str, told: Callable[[int], None]) -> None:
    """All messages, topic by topic, in the order of the file; each has its receipt on return. `told` gets
    counts of those sent. Raises ClientError.
    """
    trio.run(partial(_publish, seed, url, told))


async def _publish(seed: Seed, url: str, told: Callable[[int], None]) -> None:
    async with open_client(url) as client:
        for topic in seed.topics:
            if topic.messages:
                await _publish_topic(client, topic, told)


async def _publish_topic(client: Client, topic: Topic, told: Callable[[int], None]) -> None:
    clock = RealClock()
    names = await client.partitions(str(topic.name))
    producers = [await client.producer(name) for name in names]
    turn = 0
    for message in topic.messages:
        for _ in range(message.repeat):
            # Messages with a key go where the key leads, as with other clients.
            number = turn if message.key is None else java_hash(message.key)
            await producers[number % len(producers)].send(message.payload, _attributes(message, clock))
            turn += 1
            if turn % SEND_TURN == 0:
                await trio.lowlevel.checkpoint()
        told(message.repeat)
    for producer in producers:
        await producer.close()


def _attributes(message: Message, clock: RealClock) -> Attributes:
    return Attributes(
        key=message.key,
        properties=message.properties,
        # From the client's clock, as other clients do: the broker takes the delay from it.
        deliver_at_ms=None if message.delay_ms is None else clock.now_ms() + message.delay_ms,
        event_time_ms=message.event_time_ms,
    )
