"""Connections to the brokers that own topics, one to each, and requests about many topics over them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from geminga.client.lookup import REDIRECTS_MAX, Lookup
from geminga.client.session import Build
from geminga.clock import RealClock
from geminga.errors import ServerError
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.lookup import refused_lookup
from geminga.pipeline.client.shared_connection import Answer, OfConsumer, SharedConnection, ask_all
from geminga.pipeline.client.topics import missing
from geminga.pipeline.errors import POLL_TIMEOUT, Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import client_commands

_PAUSES_SECONDS = (0.0, 0.2, 1.0, 3.0)
"""Before each further attempt at a topic that moves, or whose broker is away; then the last one again."""
PATIENCE_SECONDS = 20.0
"""After that there is no further attempt: as long as readers wait for a broker that is started again."""
_GONE = (ServerError.TOPIC_NOT_FOUND, ServerError.METADATA)
LOST_CONSUMER = (ServerError.METADATA, ServerError.CONSUMER_NOT_FOUND)
"""How brokers refuse a request of a consumer that they have closed."""
_MOVING = (ServerError.SERVICE_NOT_READY, ServerError.TOO_MANY_REQUESTS)
_CLOCK = RealClock()

Key = TypeVar("Key")


class Consumer(NamedTuple):
    """One consumer among those of a connection."""

    connection: SharedConnection
    consumer_id: int


class Subscribing(NamedTuple):
    """A consumer that is wanted on a topic (a single partition)."""

    topic: str
    build: Callable[[int, int], bytes]
    """Makes SUBSCRIBE of a request id and a consumer id."""


class OwningBrokers:
    """Keeps one connection for each broker and knows which broker serves a topic. Not for several threads.
    Close it.
    """

    def __init__(self, access: Access) -> None:
        """Connects when first needed."""
        self.access = access
        self._connections: dict[str, SharedConnection] = {}
        self._owners: dict[str, str] = {}
        self._service_url: str | None = None
        """Of the broker that answered first."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._owners.clear()

    # -- requests -------------------------------------------------------------------------------------------

    def ask(self, asked: Mapping[Key, tuple[SharedConnection, Build]]) -> dict[Key, Answer]:
        """The answers, refusals and lost connections among them."""
        by_connection: dict[SharedConnection, list[Build]] = {}
        keys: dict[SharedConnection, list[Key]] = {}
        for key, (connection, build) in asked.items():
            by_connection.setdefault(connection, []).append(build)
            keys.setdefault(connection, []).append(key)
        found: dict[Key, Answer] = {}
        for connection, answers in ask_all(by_connection).items():
            found |= dict(zip(keys[connection], answers, strict=True))
            if any(isinstance(answer, BrokerUnreachable) for answer in answers):
                self.drop(connection)
        return found

    def ask_any(self, builds: Sequence[Build]) -> list[Answer]:
        """What every broker can answer."""

        def attempt(waiting: list[int]) -> dict[int, Answer]:
            try:
                connection = self._connected(None)
            except BrokerUnreachable as error:
                if self._service_url is None:
                    raise  # it never answered: service.url may be wrong
                return dict.fromkeys(waiting, error)
            return self.ask({index: (connection, builds[index]) for index in waiting})

        answers = persistently(self.access, list(range(len(builds))), attempt)
        return [answers[index] for index in range(len(builds))]

    # -- consumers ------------------------------------------------------------------------------------------

    def subscribe(self, wanted: Mapping[Key, Subscribing]) -> tuple[dict[Key, Consumer], dict[Key, Answer]]:
        """Consumers, and why others could not be made."""
        owners = self._owners_of({each.topic for each in wanted.values()})
        lost: dict[Key, Answer] = {}
        consumers: dict[Key, Consumer] = {}
        builds: dict[Key, Build] = {}
        for key, each in wanted.items():
            owner = owners[each.topic]
            if isinstance(owner, PipelineError):
                lost[key] = owner
                continue
            consumers[key] = Consumer(owner, owner.new_consumer_id())
            builds[key] = OfConsumer(each.build, consumers[key].consumer_id)
        answers = self.ask({key: (consumers[key].connection, build) for key, build in builds.items()})
        for key, answer in answers.items():
            if isinstance(answer, PipelineError):
                topic = wanted[key].topic
                del consumers[key]
                self._owners.pop(topic, None)
                code = answer.code if isinstance(answer, Refused) else None
                if code == ServerError.CONSUMER_NOT_FOUND:
                    # Pulsar closes a consumer that comes back while it still closes the one that sought.
                    answer = BrokerUnreachable(f"{topic}: the broker closed the consumer")
                lost[key] = missing(topic) if code in _GONE else answer
        return consumers, lost

    def is_open(self, consumer: Consumer) -> bool:
        """Whether its connection is there, and the broker has not closed it."""
        connection = consumer.connection
        return (
            self._connections.get(connection.url) is connection
            and consumer.consumer_id not in connection.closed_consumers
        )

    def has(self, consumer: Consumer) -> bool:
        """Whether it `is_open`; if not, another consumer gets its id."""
        if self.is_open(consumer):
            return True
        consumer.connection.was_closed(consumer.consumer_id)
        return False

    def close_consumer(self, consumer: Consumer) -> None:
        """Its connection may be lost."""
        connection, consumer_id = consumer
        try:
            connection.tell(client_commands.close_consumer(connection.new_request_id(), consumer_id))
        except BrokerUnreachable:
            return
        connection.closed_consumers.discard(consumer_id)
        connection.facts.pop(consumer_id, None)

    def is_active(self, consumer: Consumer) -> bool | None:
        """Whether it is the active one of its Failover subscription. None: the broker has not told yet."""
        return consumer.connection.is_active.get(consumer.consumer_id)

    def catch_up(self, consumers: Iterable[Consumer], timeout_s: float = 0.001) -> None:
        """See what the brokers of these have told meanwhile, or tell within that time, and answer PINGs."""
        for connection in {consumer.connection for consumer in consumers}:
            try:
                connection.catch_up(timeout_s)
            except BrokerUnreachable:
                self.drop(connection)

    # -- connections ----------------------------------------------------------------------------------------

    def _owners_of(self, topics: set[str]) -> dict[str, SharedConnection | PipelineError]:
        """By LOOKUP, which is sent again to the broker that another refers to."""
        found: dict[str, SharedConnection | PipelineError] = {}
        for topic in topics:
            if (connection := self._connections.get(self._owners.get(topic, ""))) is not None:
                found[topic] = connection
        waiting = {topic: Lookup(topic) for topic in topics - found.keys()}
        for _ in range(REDIRECTS_MAX):
            if not waiting:
                return found
            asked: dict[str, tuple[SharedConnection, Build]] = {}
            for topic, lookup in waiting.items():
                try:
                    asked[topic] = (self._connected(lookup.url), lookup.request)
                except BrokerUnreachable as error:
                    found[topic] = error
            lookups, waiting = waiting, {}
            for topic, answer in self.ask(asked).items():
                if isinstance(answer, Refused):
                    found[topic] = refused_lookup(topic, answer)
                    continue
                if isinstance(answer, PipelineError):
                    found[topic] = answer
                    continue
                connection = asked[topic][0]
                owner = lookups[topic].hear(answer, connection.url)
                if owner is None:
                    waiting[topic] = lookups[topic]
                    continue
                try:
                    found[topic] = self._connected(owner)
                    self._owners[topic] = owner
                except BrokerUnreachable as error:
                    found[topic] = error
        for topic, lookup in waiting.items():
            found[topic] = PipelineError(lookup.endless)
        return found

    def _connected(self, url: str | None) -> SharedConnection:
        """Raises `BrokerUnreachable`."""
        kept = self._connections.get(url or self._service_url or "")
        if kept is not None:
            return kept
        made = SharedConnection(Connection.open(self.access, url))
        if url is None:
            self._service_url = made.url
        self._connections[url or made.url] = made
        return made

    def drop(self, connection: SharedConnection) -> None:
        """Close it; what was on its way over it is lost."""
        connection.close()
        self._connections = {url: kept for url, kept in self._connections.items() if kept is not connection}


def persistently(
    access: Access, keys: Sequence[Key], attempt: Callable[[list[Key]], dict[Key, Answer]]
) -> dict[Key, Answer]:
    """Again, after a while, what met a broker that is away or a topic that moves; for `PATIENCE_SECONDS`, or
    as long as the access says.
    """
    patience_s = max(PATIENCE_SECONDS, access.patience_s)
    until_s = _CLOCK.monotonic_s() + patience_s
    pauses = chain(_PAUSES_SECONDS, repeat(_PAUSES_SECONDS[-1]))
    found = attempt(list(keys)) if keys else {}
    while waiting := [key for key in keys if _passes(found[key])]:
        left_s = until_s - _CLOCK.monotonic_s()
        if left_s <= 0:
            return found | {key: _given_up(found[key], patience_s) for key in waiting}
        threading.Event().wait(min(next(pauses), left_s))
        found |= attempt(waiting)
    return found


def _given_up(answer: Answer, patience_s: float) -> Answer:
    if not isinstance(answer, BrokerUnreachable):
        return answer
    return BrokerUnreachable(
        answer, f"; given up after {patience_s:.0f} s, a larger ", POLL_TIMEOUT, " waits longer"
    )


def retryable(topic: str, answer: Answer) -> Answer:
    """An answer that says that the broker has closed the consumer, as one that `persistently` asks again."""
    if isinstance(answer, Refused) and answer.code in LOST_CONSUMER:
        return BrokerUnreachable(f"{topic}: the broker closed the consumer")
    return answer


def last_message_id(number: int, consumer_id: int) -> bytes:
    """The command; its answer has the mark-delete position too."""
    return client_commands.last_message_id(number, consumer_id)


def _passes(answer: Answer) -> bool:
    """Whether another attempt may help."""
    return isinstance(answer, BrokerUnreachable) or (isinstance(answer, Refused) and answer.code in _MOVING)
