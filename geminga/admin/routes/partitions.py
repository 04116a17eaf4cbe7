"""Partitioned topics: list, create, grow, delete, and statistics over all partitions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    Request,
    Response,
    Router,
    json_response,
    streamed_json,
)
from geminga.admin.http.streaming import json_list
from geminga.admin.routes.addresses import Addresses
from geminga.admin.routes.names import namespace_of, topic_of
from geminga.admin.routes.topics import (
    TOPIC,
    BadPartitionName,
    properties_of,
    shown_statistics,
    stats_asked,
)
from geminga.admin.statistics.internal_stats_json import PartitionedInternalStats, internal_stats_json
from geminga.admin.statistics.stats_json import PartitionedMetadata, PartitionedTotal, encoded
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.statistics import StatisticsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import Pace, for_each, in_slices
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import Conflict, NamespaceNotFound, PeerError, TopicNotFound
from geminga.names import PARTITION_SUFFIX, Partitions, TopicName


class BadPartitionCount(PeerError):
    http_status = 406


class TooFewPartitions(PeerError):
    http_status = 422


class PartitionRoutes:
    def __init__(
        self,
        broker: BrokerIdentity,
        namespaces: Namespaces,
        topics: TopicsView,
        statistics: StatisticsView,
    ) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._topics = topics
        self._statistics = statistics

    def add_to(self, router: Router) -> None:
        router.add("GET", "/admin/v2/persistent/{tenant}/{namespace}/partitioned", self.names, walks="topics")
        router.add("PUT", f"{TOPIC}/partitions", self.create)
        router.add("GET", f"{TOPIC}/partitions", self.get)
        router.add("POST", f"{TOPIC}/partitions", self.grow, walks="partitions", joins=True)
        router.add("DELETE", f"{TOPIC}/partitions", self.delete, walks="partitions", joins=True)
        router.add("GET", f"{TOPIC}/partitioned-stats", self.stats, walks="partitions")
        router.add("GET", f"{TOPIC}/partitioned-internalStats", self.internal_stats, walks="partitions")

    async def names(self, request: Request) -> Response:
        name = namespace_of(request)
        self._namespaces.record(name)
        return streamed_json(json_list(await self._topics.partitioned_names_in(name)))

    async def create(self, request: Request) -> Response:
        topic = topic_of(request)
        partitions, properties = _partitions(request)
        if PARTITION_SUFFIX in topic.local:
            raise BadPartitionName(f"Partitioned Topic Name should not contain '{PARTITION_SUFFIX}'")
        if partitions <= 0:
            raise BadPartitionCount("Number of partitions should be more than 0")
        self._check_count(partitions)
        try:
            self._namespaces.check_exists(topic.namespace)
        except NamespaceNotFound:
            raise NamespaceNotFound("Namespace not found") from None
        if self._topics.exists(topic) or self._topics.partitions(topic):
            raise Conflict("This topic already exists")
        await self._topics.create_partitioned(topic, partitions, properties)
        return NO_CONTENT

    async def get(self, request: Request) -> Response:
        topic = topic_of(request)
        if not self._topics.partitions(topic) and not self._topics.exists(topic):
            allowed = request.flag("checkAllowAutoCreation") and self._topics.may_be_created(topic)
            if not allowed:
                raise TopicNotFound(f"Topic {topic} not found")
        return json_response(self._metadata(topic))

    async def grow(self, request: Request) -> Response:
        topic = topic_of(request)
        wanted, _ = _partitions(request)
        partitions = self._topics.partitions(topic)
        if not partitions:
            raise Conflict(f"Topic {topic} is not the partitioned topic.")
        if wanted < partitions:
            raise TooFewPartitions(
                f"Desired partitions {wanted} can't be less than the current partitions {partitions}."
            )
        self._check_count(wanted)
        if wanted > partitions:
            await self._topics.grow_partitioned(topic, wanted)
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        topic = topic_of(request)
        if not self._topics.partitions(topic):
            if self._topics.exists(topic):
                raise Conflict(
                    f"{topic} is a non-partitioned topic. Instead of calling delete-partitioned-topic please "
                    "call delete."
                )
            raise TopicNotFound(f"Topic {topic} not found.")
        await self._topics.delete_partitioned(topic, force=request.flag("force"))
        return NO_CONTENT

    async def stats(self, request: Request) -> Response:
        topic = topic_of(request)
        parts = await self._loaded_parts(topic)
        metadata = self._metadata(topic)
        total = PartitionedTotal()
        shown = self._shown(request, parts, total)

        async def sums() -> bytes:
            return await in_slices(encoded(total.json(metadata)))

        if request.flag("perPartition", default=True):
            return streamed_json(_with_partitions(shown, sums, rest_first=False))
        async with aclosing(shown):
            async for _ in shown:
                pass
        return Response(200, await sums(), "application/json")

    async def _shown(
        self, request: Request, parts: Sequence[TopicName], total: PartitionedTotal
    ) -> AsyncGenerator[tuple[str, object], None]:
        owner = Addresses(self._broker, request.local_host).broker
        asked, pace = stats_asked(request), Pace()
        for part in parts:
            await pace.turn()
            shown = await shown_statistics(self._statistics, part, owner, asked)
            await in_slices(total.add(shown))
            yield str(part), msgspec.Raw(await in_slices(encoded(shown)))

    async def internal_stats(self, request: Request) -> Response:
        topic = topic_of(request)
        parts = await self._loaded_parts(topic)
        metadata = self._metadata(topic)

        async def shown() -> AsyncGenerator[tuple[str, object], None]:
            pace = Pace()
            for part in parts:
                await pace.turn()
                found = await self._statistics.of_ledgers(part)
                shown = internal_stats_json(found, await self._statistics.readers(part))
                yield str(part), msgspec.Raw(await in_slices(shown))

        async def rest() -> bytes:
            return msgspec.json.encode(PartitionedInternalStats(metadata=metadata, partitions={}))

        return streamed_json(_with_partitions(shown(), rest, rest_first=True))

    async def _loaded_parts(self, topic: TopicName) -> Sequence[TopicName]:
        """All partitions, which are loaded now: what is wrong with one is known before the answer begins."""
        parts = self._parts(topic)
        await for_each(parts, self._topics.load)
        return parts

    def _parts(self, topic: TopicName) -> Sequence[TopicName]:
        partitions = self._topics.partitions(topic)
        if not partitions:
            raise TopicNotFound(f"Partitioned Topic {topic} not found")
        return Partitions(topic, partitions)

    def _metadata(self, topic: TopicName) -> PartitionedMetadata:
        partitions = self._topics.partitions(topic)
        properties = self._topics.partition_properties(topic) if partitions else {}
        return PartitionedMetadata(partitions=partitions, properties=properties or UNSET)

    def _check_count(self, partitions: int) -> None:
        allowed = self._broker.config.max_num_partitions_per_partitioned_topic
        if allowed and partitions > allowed:
            raise BadPartitionCount(f"Number of partitions should be less than or equal to {allowed}")


async def _with_partitions(
    shown: AsyncGenerator[tuple[str, object], None], rest: Callable[[], Awaitable[bytes]], *, rest_first: bool
) -> AsyncGenerator[bytes, None]:
    """A JSON object whose last field `partitions`, empty in `rest`, gets each partition when it is its turn.

    Sums are known last; there the partitions stand before the rest.
    """
    before = _without_partitions(await rest()) + b"," if rest_first else b"{"
    before += b'"partitions":{'
    async with aclosing(shown):
        async for name, value in shown:
            yield before + msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
            before = b","
    yield b"}}" if rest_first else b"}," + _without_partitions(await rest()).removeprefix(b"{") + b"}"


def _without_partitions(text: bytes) -> bytes:
    """JSON without its last field and its end."""
    end = b',"partitions":{}}'
    assert text.endswith(end)
    return text.removesuffix(end)


def _partitions(request: Request) -> tuple[int, dict[str, str]]:
    """The body is a number, `null` for 0 as Java reads it, or an object that also has properties."""
    body = request.json()
    properties: object = None
    if body is None and request.body.strip():
        body = 0
    if isinstance(body, dict):
        properties = body.get("properties")
        body = body.get("partitions")
    if not isinstance(body, int) or isinstance(body, bool) or abs(body) >= 2**31:
        raise BadRequest("expected the number of partitions")
    return body, properties_of(properties)
