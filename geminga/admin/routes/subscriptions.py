"""Subscriptions of a topic, or of all partitions of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    NotFound,
    Request,
    Response,
    Router,
    streamed_json,
)
from geminga.admin.http.streaming import json_list
from geminga.admin.routes.message_ids import MessageId
from geminga.admin.routes.names import subscription_of, topic_of
from geminga.admin.routes.numbers import INT_MAX, NUMBER_MAX, whole_number
from geminga.admin.routes.topics import TOPIC, parts_of, properties_of
from geminga.admin.view.subscriptions import SubscriptionsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import Pace, for_each
from geminga.broker.policies.values import read
from geminga.errors import Conflict, NotAllowed, PeerError, SubscriptionNotFound
from geminga.names import TopicName
from geminga.position import EARLIEST, LATEST, Position

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
_ENDS = {
    "earliest": {"ledgerId": -1, "entryId": -1},
    "latest": {"ledgerId": NUMBER_MAX, "entryId": NUMBER_MAX},
}


class BadPartition(PeerError):
    http_status = 412


class SubscriptionRoutes:
    def __init__(self, topics: TopicsView, subscriptions: SubscriptionsView) -> None:
        self._topics = topics
        self._subscriptions = subscriptions

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{TOPIC}/subscriptions", self.names, walks="partitions")
        router.add("PUT", SUBSCRIPTION, self.create, walks="partitions", joins=True)
        router.add("DELETE", SUBSCRIPTION, self.delete, walks="partitions", joins=True)
        router.add("POST", f"{SUBSCRIPTION}/skip_all", self.skip_all, walks="partitions", joins=True)
        router.add("POST", f"{SUBSCRIPTION}/skip/{{count}}", self.skip)
        router.add("POST", f"{SUBSCRIPTION}/expireMessages", self.expire_up_to)
        router.add("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", self.expire, walks="partitions")
        router.add(
            "POST",
            f"{TOPIC}/all_subscription/expireMessages/{{seconds}}",
            self.expire_all,
            walks="partitions",
        )
        router.add("POST", f"{SUBSCRIPTION}/resetcursor", self.reset)
        router.add(
            "POST",
            f"{SUBSCRIPTION}/resetcursor/{{timestamp}}",
            self.reset_to_time,
            walks="partitions",
            joins=True,
        )

    async def names(self, request: Request) -> Response:
        names: dict[str, None] = {}
        pace = Pace()
        for part in parts_of(self._topics, topic_of(request)):
            names.update(dict.fromkeys(await self._subscriptions.names(part)))
            await pace.turn()
        return streamed_json(json_list(list(names)))

    async def create(self, request: Request) -> Response:
        topic, name = topic_of(request), subscription_of(request)
        start, properties = _start(request.json())
        replicated = request.flag("replicated")
        if not self._topics.partitions(topic) and not self._topics.exists(topic):
            # As in Pulsar: a subscription may come before its topic, if topics may make themselves.
            if not self._topics.may_be_created(topic):
                parts_of(self._topics, topic)
            await self._topics.create(topic, {})

        async def create_on(part: TopicName) -> None:
            try:
                await self._subscriptions.create(
                    part, name, start=start, properties=properties, replicated=replicated
                )
            except Conflict:
                if not self._topics.partitions(topic):
                    raise

        await for_each(parts_of(self._topics, topic), create_on)
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        force = request.flag("force")
        name = subscription_of(request)
        parts = await self._parts(request)
        await for_each(parts, lambda part: self._subscriptions.delete(part, name, force=force))
        return NO_CONTENT

    async def skip_all(self, request: Request) -> Response:
        name = subscription_of(request)
        parts = await self._parts(request)
        await for_each(parts, lambda part: self._subscriptions.skip(part, name, None))
        return NO_CONTENT

    async def skip(self, request: Request) -> Response:
        count = _count(request.parameters["count"])
        if self._topics.partitions(topic_of(request)):
            raise NotAllowed("Skip messages on a partitioned topic is not allowed")
        for part in await self._parts(request):
            await self._subscriptions.skip(part, subscription_of(request), count)
        return NO_CONTENT

    async def expire(self, request: Request) -> Response:
        seconds = whole_number(request.parameters["seconds"], INT_MAX)
        name = subscription_of(request)
        parts = await self._parts(request)
        await for_each(parts, lambda part: self._expire(part, (name,), seconds))
        return NO_CONTENT

    async def expire_all(self, request: Request) -> Response:
        seconds = whole_number(request.parameters["seconds"], INT_MAX)

        async def expire_in(part: TopicName) -> None:
            await self._expire(part, await self._subscriptions.names(part), seconds)

        await for_each(parts_of(self._topics, topic_of(request)), expire_in)
        return NO_CONTENT

    async def _expire(self, part: TopicName, names: Iterable[str], seconds: int) -> None:
        pace = Pace()
        for name in names:
            await pace.turn()
            if not await self._subscriptions.expire(part, name, seconds):
                raise Conflict(
                    f"Expire message by timestamp not issued on topic {part} for subscription {name} due to "
                    "ongoing message expiration not finished or subscription almost catch  up. If it's "
                    "performed on a partitioned topic operation might succeeded on other partitions, please "
                    "check stats of individual partition."
                )

    async def expire_up_to(self, request: Request) -> Response:
        body = request.json()
        asked = read(MessageId, _ENDS.get(body, body) if isinstance(body, str) else body)
        if self._topics.partitions(topic_of(request)):
            raise NotAllowed("Expire message at position is not supported for partitioned-topic")
        position = asked.position
        if asked.excluded or asked.is_excluded:
            position = position.next()
        name = subscription_of(request)
        parts = await self._parts(request)
        if parts[0].partition_index != asked.partition_index:
            raise BadPartition(
                "Invalid parameter for expire message by position, partition index of passed in message "
                "position doesn't match partition index for the topic"
            )
        for part in parts:
            if not await self._subscriptions.expire_up_to(part, name, position):
                raise Conflict(
                    f"Expire message by position not issued on topic {part} for subscription {name} due to "
                    "ongoing message expiration not finished or invalid message position provided."
                )
        return NO_CONTENT

    async def reset_to_time(self, request: Request) -> Response:
        publish_time_ms = _count(request.parameters["timestamp"])
        name = subscription_of(request)
        parts = await self._parts(request)
        await for_each(parts, lambda part: self._subscriptions.reset_to_time(part, name, publish_time_ms))
        return NO_CONTENT

    async def reset(self, request: Request) -> Response:
        body = request.json()
        if not isinstance(body, dict):
            raise BadRequest("expected an object with ledgerId and entryId")
        if self._topics.partitions(topic_of(request)):
            raise NotAllowed("Reset-cursor at position is not allowed for partitioned-topic")
        position = _position(body)
        if body.get("isExcluded") or body.get("excluded"):
            position = position.next()
        for part in await self._parts(request):
            await self._subscriptions.reset(part, subscription_of(request), position)
        return NO_CONTENT

    async def _parts(self, request: Request) -> list[TopicName]:
        return await parts_with(
            self._topics, self._subscriptions, topic_of(request), subscription_of(request)
        )


async def parts_with(
    topics: TopicsView, subscriptions: SubscriptionsView, topic: TopicName, name: str
) -> list[TopicName]:
    """The parts of the topic that have the subscription. Raises `SubscriptionNotFound` if none has."""
    found: list[TopicName] = []
    pace = Pace()
    for part in parts_of(topics, topic):
        if await subscriptions.has(part, name):
            found.append(part)
        await pace.turn()
    if not found:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic}")
    return found


def _start(body: Any) -> tuple[Position, dict[str, str]]:
    """Where a new subscription begins: at the end unless the body says otherwise."""
    if body is None:
        return LATEST, {}
    if isinstance(body, str) and body.lower() in ("earliest", "latest"):
        return (EARLIEST if body.lower() == "earliest" else LATEST), {}
    if isinstance(body, dict):
        return _position(body), properties_of(body.get("properties"))
    raise BadRequest('expected "earliest", "latest" or an object with ledgerId and entryId')


def _position(body: dict[str, Any]) -> Position:
    numbers = []
    for key in ("ledgerId", "entryId"):
        value = body.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= NUMBER_MAX:
            raise BadRequest(f"{key} must be a whole number of at least -1")
        numbers.append(value)
    return Position(*numbers)


def _count(text: str) -> int:
    """A number of 0 or more out of the path."""
    number = whole_number(text)
    if number < 0:
        raise NotFound("Not Found")
    return number
