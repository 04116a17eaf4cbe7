"""Persistent topics without regard to partitions: list, create, delete, statistics."""

from __future__ import annotations

from collections.abc import Generator, Sequence

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
from geminga.admin.routes.message_ids import shown_id
from geminga.admin.routes.names import namespace_of, topic_of
from geminga.admin.routes.numbers import whole_number
from geminga.admin.statistics.internal_stats_json import internal_stats_json
from geminga.admin.statistics.stats_json import StatsAsked, encoded, topic_json
from geminga.admin.statistics.stats_json import Topic as StatsOfTopic
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.statistics import StatisticsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import NAMES_MAX, for_each, in_slices
from geminga.broker.policies.bundles import bundle_range, topic_hash
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import Conflict, NamespaceNotFound, NotAllowed, PeerError, TopicNotFound
from geminga.names import PARTITION_SUFFIX, Partitions, TopicName
from geminga.position import Position

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


class BadPartitionName(PeerError):
    http_status = 412


class TopicRoutes:
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
        router.add("GET", "/admin/v2/persistent/{tenant}/{namespace}", self.names, walks="topics")
        router.add("PUT", TOPIC, self.create)
        router.add("DELETE", TOPIC, self.delete)
        router.add("GET", f"{TOPIC}/stats", self.stats, walks="subscriptions")
        router.add("GET", f"{TOPIC}/internalStats", self.internal_stats, walks="subscriptions")
        router.add("GET", f"{TOPIC}/properties", self.properties)
        router.add("PUT", f"{TOPIC}/unload", self.unload, walks="partitions", joins=True)
        router.add("POST", f"{TOPIC}/terminate", self.terminate, walks="subscriptions")
        router.add(
            "POST", f"{TOPIC}/terminate/partitions", self.terminate_partitions, walks="partitions", joins=True
        )
        router.add("DELETE", f"{TOPIC}/truncate", self.truncate, walks="partitions", joins=True)

    async def names(self, request: Request) -> Response:
        name = namespace_of(request)
        self._namespaces.record(name)
        names = await self._topics.names_in(name)
        bundle = request.query.get("bundle")
        if bundle is not None:
            low, high = bundle_range(name, bundle, self._namespaces.policies(name)["bundles"]["boundaries"])
            names = await in_slices(_within(names, low, high))
        return streamed_json(json_list(names))

    async def create(self, request: Request) -> Response:
        topic = topic_of(request)
        _check_namespace(self._namespaces, topic)
        properties = properties_of(request.json())
        if self._topics.exists(topic) or self._topics.partitions(topic):
            raise Conflict("This topic already exists")
        if topic.is_partition:
            self._check_is_partition(topic)
        await self._topics.create(topic, properties)
        return NO_CONTENT

    def _check_is_partition(self, topic: TopicName) -> None:
        whole = topic.partitioned_name
        partitions = self._topics.partitions(whole)
        if not partitions:
            raise BadPartitionName(
                f'Can\'t create topic {topic.local} with "{PARTITION_SUFFIX}" followed by numeric value if '
                f"there isn't a partitioned topic {whole.local} created."
            )
        if topic.partition_index >= partitions:
            raise BadPartitionName(
                f'Can\'t create topic {topic.local} with "{PARTITION_SUFFIX}" followed by a number smaller '
                f"than number of partition of partitioned topic {whole.local}"
            )

    async def delete(self, request: Request) -> Response:
        topic = topic_of(request)
        if self._topics.partitions(topic):
            raise Conflict(
                f"{topic} is a partitioned topic, instead of calling delete topic, please call "
                "delete-partitioned-topic."
            )
        check_is_there(self._topics, topic)
        if self._topics.exists(topic):
            await self._topics.delete(topic, force=request.flag("force"))
        return NO_CONTENT

    async def stats(self, request: Request) -> Response:
        topic = topic_of(request)
        check_is_there(self._topics, topic)
        owner = Addresses(self._broker, request.local_host).broker
        shown = await shown_statistics(self._statistics, topic, owner, stats_asked(request))
        return Response(200, await in_slices(encoded(shown)), "application/json")

    async def internal_stats(self, request: Request) -> Response:
        topic = topic_of(request)
        check_is_there(self._topics, topic)
        ledger_id, _, entry_id = request.query.get("gemingaRangesAfter", "-1:-1").partition(":")
        found = await self._statistics.of_ledgers(
            topic,
            ranges_of=request.query.get("gemingaRangesOf"),
            ranges_after=Position(whole_number(ledger_id), whole_number(entry_id)),
        )
        readers = await self._statistics.readers(topic)
        shown = internal_stats_json(found, readers, topic if request.flag("metadata") else None)
        return Response(200, await in_slices(shown), "application/json")

    async def properties(self, request: Request) -> Response:
        topic = topic_of(request)
        if self._topics.partitions(topic):
            return json_response(self._topics.partition_properties(topic))
        check_is_there(self._topics, topic)
        return json_response(await self._topics.properties(topic))

    async def unload(self, request: Request) -> Response:
        topic = topic_of(request)
        await for_each(parts_of(self._topics, topic), self._unload_part)
        return NO_CONTENT

    async def _unload_part(self, part: TopicName) -> None:
        if self._topics.exists(part):
            await self._topics.unload(part)

    async def truncate(self, request: Request) -> Response:
        await for_each(parts_of(self._topics, topic_of(request)), self._truncate_part)
        return NO_CONTENT

    async def _truncate_part(self, part: TopicName) -> None:
        if self._topics.exists(part):
            await self._topics.truncate(part)

    async def terminate_partitions(self, request: Request) -> Response:
        topic = topic_of(request)
        if not self._topics.partitions(topic):
            raise NotAllowed(
                "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
                "please use terminate commands"
            )
        ends: dict[int, dict[str, int]] = {}

        async def terminate(part: TopicName) -> None:
            if not self._topics.exists(part):
                await self._topics.create(part, {})
            ends[part.partition_index] = shown_id(await self._topics.terminate(part))

        await for_each(parts_of(self._topics, topic), terminate)
        return json_response({str(index): ends[index] for index in sorted(ends)})

    async def terminate(self, request: Request) -> Response:
        topic = topic_of(request)
        if self._topics.partitions(topic):
            raise NotAllowed("Termination of a partitioned topic is not allowed")
        check_is_there(self._topics, topic)
        return json_response(shown_id(await self._topics.terminate(topic)))


def _within(names: Sequence[str], low: int, high: int) -> Generator[None, None, list[str]]:
    """Those whose hashes are in a bundle's range; yields now and then."""
    found: list[str] = []
    for start in range(0, len(names), NAMES_MAX):
        found += (name for name in names[start : start + NAMES_MAX] if low <= topic_hash(name) < high)
        yield
    return found


def stats_asked(request: Request) -> StatsAsked:
    return StatsAsked(
        publishers=not request.flag("excludePublishers"),
        consumers=not request.flag("excludeConsumers"),
        backlog_sizes=request.flag("subscriptionBacklogSize", default=True),
        earliest_times=request.flag("getEarliestTimeInBacklog"),
    )


async def shown_statistics(
    statistics: StatisticsView, topic: TopicName, owner: str, asked: StatsAsked
) -> StatsOfTopic:
    found = await statistics.of_topic(topic)
    earliest_ms = await statistics.earliest_in_backlogs(topic) if asked.earliest_times else {}
    return await in_slices(topic_json(found, owner=owner, asked=asked, earliest_ms=earliest_ms))


def check_is_there(topics: TopicsView, topic: TopicName) -> None:
    """Raises `TopicNotFound`. A partition is there as soon as its partitioned topic is, used or not."""
    if topics.exists(topic):
        return
    if topic.is_partition:
        partitions = topics.partitions(topic.partitioned_name)
        if topic.partition_index < partitions:
            return
        if partitions:
            raise TopicNotFound("Topic partitions were not yet created")
        raise TopicNotFound(f"Partitioned Topic not found: {topic} has zero partitions")
    raise TopicNotFound(f"Topic {topic} not found")


def parts_of(topics: TopicsView, topic: TopicName) -> Sequence[TopicName]:
    """The partitions of a partitioned topic, or the topic itself. Raises `TopicNotFound`."""
    partitions = topics.partitions(topic)
    if partitions:
        return Partitions(topic, partitions)
    check_is_there(topics, topic)
    return [topic]


def properties_of(body: object) -> dict[str, str]:
    """A JSON object of strings, or of what Java takes for strings; empty for an empty body."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadRequest("expected an object of strings")
    return {key: _string(value) for key, value in body.items()}


def _string(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise BadRequest("expected an object of strings")
    return str(value)


def _check_namespace(namespaces: Namespaces, topic: TopicName) -> None:
    try:
        namespaces.check_exists(topic.namespace)
    except NamespaceNotFound:
        raise NamespaceNotFound("Namespace not found") from None
