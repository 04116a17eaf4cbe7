"""Stored messages: by their place, in a subscription's backlog, by time; how large and how long a backlog is.

Of a partitioned topic nothing here is answered: its partitions are asked one by one.
"""

from __future__ import annotations

from functools import partial

from geminga.admin.http.router import BadRequest, Request, Response, Router, json_response
from geminga.admin.messages.shown_message import ShownMessages
from geminga.admin.routes.message_ids import MessageId, shown_id
from geminga.admin.routes.names import subscription_of, topic_of
from geminga.admin.routes.numbers import INT_MAX, whole_number
from geminga.admin.routes.topics import TOPIC, check_is_there
from geminga.admin.view.messages import MessagesView
from geminga.admin.view.topics import TopicsView
from geminga.broker.policies.values import read
from geminga.errors import NotAllowed, PeerError, SubscriptionNotFound
from geminga.names import TopicName
from geminga.position import Position

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"


class NothingToExamine(PeerError):
    http_status = 412


class MessageRoutes:
    def __init__(self, topics: TopicsView, messages: MessagesView) -> None:
        self._topics = topics
        self._messages = messages
        self._shown = ShownMessages(messages.at)

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{SUBSCRIPTION}/position/{{number}}", self.peek)
        router.add("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", self.by_id)
        router.add("GET", f"{TOPIC}/examinemessage", self.examine)
        router.add("GET", f"{TOPIC}/messageid/{{timestamp}}", self.id_by_time, walks="messages")
        router.add("GET", f"{TOPIC}/lastMessageId", self.last_id)
        router.add("PUT", f"{TOPIC}/backlogSize", self.backlog_size)
        router.add("POST", f"{SUBSCRIPTION}/analyzeBacklog", self.analyze, walks="messages")

    def _topic(self, request: Request, refusal: str) -> TopicName:
        """Not a partitioned one. Raises `NotAllowed`, `TopicNotFound`."""
        topic = topic_of(request)
        if self._topics.partitions(topic):
            raise NotAllowed(refusal)
        check_is_there(self._topics, topic)
        return topic

    async def peek(self, request: Request) -> Response:
        number = whole_number(request.parameters["number"], INT_MAX)
        topic = self._topic(request, "Peek messages on a partitioned topic is not allowed")
        name = subscription_of(request)
        if number < 1:
            raise BadRequest("the position of a message in the backlog is 1 or more")
        find = partial(self._messages.in_backlog, topic, name, number)
        return await self._shown.answer(topic, find, "Message not found")

    async def by_id(self, request: Request) -> Response:
        place = Position(*(whole_number(request.parameters[name]) for name in ("ledger", "entry")))
        topic = self._topic(request, "GetMessageById is not allowed on partitioned-topic")
        find = partial(self._messages.at, topic, place)
        return await self._shown.answer(topic, find, "Message id not found")

    async def examine(self, request: Request) -> Response:
        """`initialPosition` earliest counts from the oldest message, anything else from the newest."""
        number = max(1, whole_number(request.query.get("messagePosition") or "1"))
        topic = self._topic(
            request,
            "Examine messages on a partitioned topic is not allowed, please try examine message on specific "
            "topic partition",
        )
        if not await self._messages.entry_count(topic):
            raise NothingToExamine("Could not examine messages due to the total message is zero")
        is_earliest = request.query.get("initialPosition") == "earliest"
        count = self._messages.from_start if is_earliest else self._messages.from_end
        return await self._shown.answer(topic, partial(count, topic, number), "Message not found")

    async def id_by_time(self, request: Request) -> Response:
        since_ms = whole_number(request.parameters["timestamp"])
        topic = self._topic(
            request,
            "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific "
            "topic partition",
        )
        found = await self._messages.published_since(topic, since_ms)
        return json_response(shown_id(found, topic.partition_index))

    async def last_id(self, request: Request) -> Response:
        topic = topic_of(request)
        check_is_there(self._topics, topic)
        last = await self._messages.last(topic)
        return json_response(shown_id(last.position, topic.partition_index, batch_index=last.batch_size - 1))

    async def backlog_size(self, request: Request) -> Response:
        """Bytes of what stands behind the message id of the body."""
        body = request.json()
        if body is None:
            raise BadRequest("expected an object with ledgerId and entryId")
        position = read(MessageId, body).position
        topic = self._topic(request, "calculate backlog size is not allowed for partitioned-topic")
        return json_response(await self._messages.bytes_after(topic, position))

    async def analyze(self, request: Request) -> Response:
        """Reads the backlog, from the message id of the body on if there is one."""
        body = request.json()
        start = None if body is None else read(MessageId, body).position
        topic = self._topic(
            request,
            "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic "
            "partition",
        )
        name = subscription_of(request)
        try:
            found = await self._messages.analyze(topic, name, start)
        except SubscriptionNotFound:
            raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic}") from None
        shown: dict[str, object] = {
            "entries": found.entries,
            "messages": found.messages,
            "filterRejectedEntries": 0,
            "filterAcceptedEntries": found.entries,
            "filterRescheduledEntries": 0,
            "filterRejectedMessages": 0,
            "filterAcceptedMessages": found.messages,
            "filterRescheduledMessages": 0,
            "aborted": not found.is_whole,
        }
        if found.first is not None and found.last is not None:
            shown |= {"firstMessageId": str(found.first), "lastMessageId": str(found.last)}
        return json_response(shown)
