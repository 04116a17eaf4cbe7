"""A topic's own properties, its partitions, and what is done for its storage: trim, compaction, offload."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    NotFound,
    Request,
    Response,
    Router,
    json_response,
    streamed_json,
)
from geminga.admin.routes.effect import with_warning, without_effect
from geminga.admin.routes.message_ids import MessageId, shown_id
from geminga.admin.routes.names import topic_of
from geminga.admin.routes.topics import TOPIC, check_is_there, parts_of, properties_of
from geminga.admin.statistics.internal_info_json import InternalInfo, internal_info_json
from geminga.admin.view.statistics import StatisticsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import Pace, for_each, in_slices
from geminga.broker.policies.values import read
from geminga.names import Partitions, TopicName
from geminga.position import Position

NOT_RUN = {"status": "NOT_RUN", "lastError": ""}
KEPT = (
    "this broker does not compact topics: it keeps all messages of this one instead, also without a "
    "subscription, until the subscription __compaction is deleted"
)


class TopicUpkeepRoutes:
    def __init__(self, topics: TopicsView, statistics: StatisticsView) -> None:
        self._topics = topics
        self._statistics = statistics

    def add_to(self, router: Router) -> None:
        router.add("PUT", f"{TOPIC}/properties", self.set_properties)
        router.add("DELETE", f"{TOPIC}/properties", self.remove_property)
        router.add(
            "POST", f"{TOPIC}/createMissedPartitions", self.create_missed, walks="partitions", joins=True
        )
        router.add("POST", f"{TOPIC}/trim", self.trim, walks="partitions", joins=True)
        router.add("GET", f"{TOPIC}/compaction", self.compaction)
        router.add("PUT", f"{TOPIC}/compaction", self.compact, walks="partitions", joins=True)
        router.add("GET", f"{TOPIC}/offload", self.offloaded)
        router.add("PUT", f"{TOPIC}/offload", self.offload)
        router.add("GET", f"{TOPIC}/internal-info", self.internal_info, walks="partitions")

    # -- properties ------------------------------------------------------------------------------------------

    async def set_properties(self, request: Request) -> Response:
        """Adds to those that are there."""
        given = properties_of(request.json())
        await self._change_properties(request, given, "")
        return NO_CONTENT

    async def remove_property(self, request: Request) -> Response:
        key = request.query.get("key")
        if not key:
            raise BadRequest("the query says which property: ?key=")
        await self._change_properties(request, {}, key)
        return NO_CONTENT

    async def _change_properties(self, request: Request, add: dict[str, str], remove: str) -> None:
        topic = topic_of(request)
        if self._topics.partitions(topic):
            await self._topics.change_partition_properties(topic, add, remove)
            return
        check_is_there(self._topics, topic)
        await self._topics.change_properties(topic, add, remove)

    # -- storage ---------------------------------------------------------------------------------------------

    async def create_missed(self, request: Request) -> Response:
        topic = topic_of(request)
        partitions = self._topics.partitions(topic)
        if not partitions:
            raise NotFound(f"Topic {topic} does not exist")
        await for_each(Partitions(topic, partitions), self._create_part)
        return NO_CONTENT

    async def _create_part(self, part: TopicName) -> None:
        if not self._topics.exists(part):
            await self._topics.create(part, {})

    async def trim(self, request: Request) -> Response:
        """Let go of ledgers that all subscriptions have consumed and nothing retains."""
        await for_each(parts_of(self._topics, topic_of(request)), self._trim_part)
        return Response(200)

    async def _trim_part(self, part: TopicName) -> None:
        if self._topics.exists(part):
            await self._topics.trim(part)

    async def compaction(self, request: Request) -> Response:
        check_is_there(self._topics, topic_of(request))
        return json_response(NOT_RUN)

    async def compact(self, request: Request) -> Response:
        """Nothing is compacted: all messages stay, so that the last one of each key does."""
        await for_each(parts_of(self._topics, topic_of(request)), self._topics.keep_for_compaction)
        return with_warning(KEPT)

    async def offloaded(self, request: Request) -> Response:
        check_is_there(self._topics, topic_of(request))
        return json_response({**NOT_RUN, "firstUnoffloadedMessage": shown_id(Position(-1, -1))})

    async def offload(self, request: Request) -> Response:
        """Body: the message id up to which ledgers would go elsewhere."""
        body = request.json()
        if body is None:
            raise BadRequest("messageId is null")
        read(MessageId, body)
        check_is_there(self._topics, topic_of(request))
        return without_effect("offloading")

    async def internal_info(self, request: Request) -> Response:
        topic = topic_of(request)
        if not self._topics.partitions(topic):
            check_is_there(self._topics, topic)
            return json_response(await self._internal_info(topic))
        return streamed_json(self._internal_infos(parts_of(self._topics, topic)))

    async def _internal_info(self, topic: TopicName) -> InternalInfo:
        return await in_slices(internal_info_json(await self._statistics.of_ledgers(topic)))

    async def _internal_infos(self, parts: Sequence[TopicName]) -> AsyncGenerator[bytes, None]:
        before, pace = b'{"version":0,"partitions":{', Pace()
        for part in parts:
            await pace.turn()
            if self._topics.exists(part):
                shown = await self._internal_info(part)
                yield before + msgspec.json.encode(str(part)) + b":" + msgspec.json.encode(shown)
                before = b","
        yield (b"" if before == b"," else before) + b"}}"
