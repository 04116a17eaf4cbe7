"""Our own small client: find a topic, publish to it, receive from it. Works with any Pulsar broker.

It does not reconnect: a command line tells its user that the broker went away, and ends.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

import trio

from geminga.cli.client.addresses import is_web, service_url
from geminga.cli.client.connection import Connection
from geminga.cli.client.consumer import Consumer
from geminga.cli.client.errors import ClientError, Refused
from geminga.cli.client.producer import Producer
from geminga.client.lookup import REDIRECTS_MAX, Lookup
from geminga.errors import ServerError
from geminga.names import TopicName
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

_PARTITION = re.compile(r"-partition-\d+$")
SUBSCRIPTION_TYPES = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}


class Client:
    """Connections to the brokers that own the topics. Made by `open_client`."""

    def __init__(self, url: str, nursery: trio.Nursery) -> None:
        self._url = url
        self._nursery = nursery
        self._connections: dict[str, Connection] = {}

    async def _connection(self, url: str) -> Connection:
        connection = self._connections.get(url)
        if connection is None:
            connection = self._connections[url] = await Connection.open(url)
            await self._nursery.start(connection.run)
        return connection

    async def partitions(self, topic: str, *, create: bool = True) -> list[str]:
        """The names to publish to or to subscribe to: the partitions, or the topic itself. `create` False:
        without making the topic.
        """
        connection = await self._connection(self._url)
        try:
            answer = await connection.request(
                lambda number: client_commands.partitioned_metadata(number, topic, create=create)
            )
        except Refused as error:
            if error.code != ServerError.TOPIC_NOT_FOUND:
                raise
            raise ClientError(f"{error}{await self._hint(topic)}") from None
        count = answer.partitions
        return [f"{topic}-partition-{index}" for index in range(count)] if count else [topic]

    async def _hint(self, topic: str) -> str:
        """Which topic was probably meant by one that does not exist."""
        import difflib

        name = TopicName.parse(topic)
        # Without what all of them share: with it every name would come near.
        shared = str(name).removesuffix(name.local)
        topics = await self.topics(str(name.namespace))
        known = {_PARTITION.sub("", other).removeprefix(shared) for other in topics}
        near = difflib.get_close_matches(name.local, known, n=1, cutoff=0.7)
        return f"; did you mean {shared}{near[0]}?" if near else ""

    async def owner(self, topic: str) -> Connection:
        """A connection to the broker that serves the topic."""
        lookup = Lookup(topic)
        for _ in range(REDIRECTS_MAX):
            url = lookup.url or self._url
            connection = await self._connection(url)
            owner = lookup.hear(await connection.request(lookup.request), url)
            if owner is not None:
                return await self._connection(owner)
        raise ClientError(lookup.endless)

    async def topics(self, namespace: str) -> list[str]:
        """The names of a namespace's persistent topics, partitions one by one."""
        connection = await self._connection(self._url)
        answer = await connection.request(
            lambda number: client_commands.topics_of_namespace(number, namespace)
        )
        return list(answer.topics)

    async def schema(self, topic: str, version: bytes | None = None) -> pb.Schema | None:
        """A version of a topic's schema, None: the newest. None for a topic without one."""
        connection = await self.owner(topic)
        try:
            answer = await connection.request(
                lambda number: client_commands.get_schema(number, topic, version)
            )
        except Refused as error:
            if error.code == ServerError.TOPIC_NOT_FOUND:
                return None
            raise
        return answer.schema if answer.HasField("schema") else None

    async def producer(
        self, topic: str, *, pending_max: int = 1000, name: str | None = None, schema: pb.Schema | None = None
    ) -> Producer:
        """A producer on one topic or partition; with `name` None the broker chooses its name."""
        return await Producer.open(await self.owner(topic), topic, pending_max, name=name, schema=schema)

    async def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        kind: str = "exclusive",
        earliest: bool = False,
        start: tuple[int, int] | None = None,
        queue_messages: int = 1000,
        durable: bool | None = None,
        read_compacted: bool = False,
        create_topic: bool = True,
    ) -> Consumer:
        """A consumer on one topic or partition. With `start` a reader from there, which leaves no trace."""
        connection = await self.owner(topic)
        return await Consumer.open(
            connection,
            topic,
            subscription,
            sub_type=SUBSCRIPTION_TYPES[kind],
            earliest=earliest,
            start=start,
            queue_messages=queue_messages,
            durable=durable,
            read_compacted=read_compacted,
            create_topic=create_topic,
        )


@contextlib.asynccontextmanager
async def open_client(url: str) -> AsyncIterator[Client]:
    """A client of the broker at `url`, either of its addresses, for the duration of the block. `ClientError`s
    come out as they are, not in groups.
    """
    if is_web(url):
        url = await trio.to_thread.run_sync(service_url, url, abandon_on_cancel=True)
    try:
        async with trio.open_nursery() as nursery:
            yield Client(url, nursery)
            nursery.cancel_scope.cancel()
    except* ClientError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[ClientError]) -> ClientError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
