"""What a driver asks about many topics at once, over one connection for each broker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from geminga.errors import ServerError
from geminga.names import TopicName
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.entry_stream import subscribe_reader
from geminga.pipeline.client.lookup import REDIRECTS_MAX, refused_lookup, target_of
from geminga.pipeline.client.shared_connection import (
    PIPELINED_MAX,
    Answer,
    Build,
    EntryFacts,
    SharedConnection,
    ask_all,
)
from geminga.pipeline.client.topics import Last, TopicMissing, full_name, missing
from geminga.pipeline.columns.places import LATEST, Place, of_message_id
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import client_commands

_PAUSES_SECONDS = (0.0, 0.2, 1.0, 3.0)
"""Before each further attempt at a topic that moves, or whose broker is away."""
_ENTRY_SECONDS = 10.0
_GONE = (ServerError.TOPIC_NOT_FOUND, ServerError.METADATA)
_LOST_CONSUMER = (ServerError.METADATA, ServerError.CONSUMER_NOT_FOUND)
_MOVING = (ServerError.SERVICE_NOT_READY, ServerError.TOO_MANY_REQUESTS)

Key = TypeVar("Key")


class _Consumer(NamedTuple):
    connection: SharedConnection
    consumer_id: int


class TopicQuestions:
    """Asks brokers where topics end, how long their ledgers are, and what single entries hold.

    Keeps one connection for each broker and, for topics that were asked where they end, a reader that
    receives nothing. Not for several threads. Close it.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connections: dict[str, SharedConnection] = {}
        self._owners: dict[str, str] = {}
        self._readers: dict[str, _Consumer] = {}
        self._service_url: str | None = None
        """Of the broker that answered first."""

    def __enter__(self) -> TopicQuestions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._owners.clear()
        self._readers.clear()

    # -- questions ------------------------------------------------------------------------------------------

    def request(self, build: Build) -> Any:
        """The answer of any broker. Raises `PipelineError`."""
        (answer,) = self._of_any_broker([build])
        if isinstance(answer, PipelineError):
            raise answer
        return answer

    def partitions(self, topics: Sequence[str]) -> list[str]:
        """The topics to read: partitions by their own names. Raises `TopicMissing`."""
        names = [full_name(topic) for topic in topics]
        answers = self._of_any_broker([_asking_partitions(str(name)) for name in names])
        found: list[str] = []
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, Refused) and answer.code in _GONE:
                raise missing(str(name))
            if isinstance(answer, PipelineError):
                raise answer
            found += _parts(name, answer.partitions)
        return found

    def lasts(self, topics: Iterable[str]) -> dict[str, Last | TopicMissing]:
        """Where each topic (a single partition) ends now. Raises `PipelineError`."""

        def ask(waiting: list[str]) -> dict[str, Answer]:
            lost = self._subscribe_readers([topic for topic in waiting if not self._has_reader(topic)])
            asked = [topic for topic in waiting if topic not in lost]
            answers = self._ask_consumers([self._readers[topic] for topic in asked], _last_message_id)
            found = lost | dict(zip(asked, answers, strict=True))
            for topic, answer in found.items():
                if isinstance(answer, Refused) and answer.code in _LOST_CONSUMER and topic in self._readers:
                    found[topic] = BrokerUnreachable(f"{topic}: the broker closed the reader")
                    del self._readers[topic]
            return found

        found: dict[str, Last | TopicMissing] = {}
        for topic, answer in self._persistently(list(topics), ask).items():
            if isinstance(answer, TopicMissing):
                found[topic] = answer
                continue
            if isinstance(answer, PipelineError):
                raise answer
            place = of_message_id(answer.last_message_id)
            found[topic] = Last(None if place.entry_id < 0 else place)
        return found

    def last_before(self, asked: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
        """For each topic and ledger, the last entry that comes before the ledger: the length of the
        ledger before it, without reading anything. Entry id -1: nothing is before it. Raises `PipelineError`.
        """
        answers = self._with_readers_at(
            [(topic, Place(ledger_id, 0, 0)) for topic, ledger_id in asked],
            lambda readers: self._ask_consumers(readers, _last_message_id),
        )
        return [of_message_id(answer.consumer_mark_delete_position).entry for answer in answers]

    def first_entries(self, asked: Sequence[tuple[str, Place]]) -> list[EntryFacts | None]:
        """Of each topic the first entry at a place or behind it; None: none came. Raises `PipelineError`."""
        return self._with_readers_at(asked, self._receive_one)

    def _receive_one(self, readers: list[_Consumer]) -> list[Answer | None]:
        found: list[Answer | None] = []
        for at in range(0, len(readers), PIPELINED_MAX):
            some = readers[at : at + PIPELINED_MAX]
            try:
                for connection, consumer_id in some:
                    connection.tell(client_commands.flow(consumer_id, 1))
                for connection in {reader.connection for reader in some}:
                    ids = [reader.consumer_id for reader in some if reader.connection is connection]
                    connection.wait_for_entries(ids, _ENTRY_SECONDS)
            except BrokerUnreachable as error:
                self._drop_lost(error, [reader.connection for reader in some])
                found += [error] * len(some)
                continue
            found += [reader.connection.facts.pop(reader.consumer_id, None) for reader in some]
        return found

    # -- one round of them ----------------------------------------------------------------------------------

    def _with_readers_at(
        self, asked: Sequence[tuple[str, Place]], ask: Callable[[list[_Consumer]], list[Any]]
    ) -> list[Any]:
        """What `ask` finds for readers that begin at these places and are closed then."""

        def attempt(waiting: list[int]) -> dict[int, Answer]:
            readers, found = self._subscribe({key: asked[key] for key in waiting})
            answers = ask(list(readers.values()))
            found |= dict(zip(readers, answers, strict=True))
            for reader in readers.values():
                _give_up(reader)
            for key, answer in found.items():
                if isinstance(answer, Refused) and answer.code in _LOST_CONSUMER:
                    found[key] = BrokerUnreachable(f"{asked[key][0]}: the broker closed the reader")
            return found

        found = self._persistently(list(range(len(asked))), attempt)
        for answer in found.values():
            if isinstance(answer, PipelineError):
                raise answer
        return [found[key] for key in range(len(asked))]

    def _persistently(
        self, keys: list[Key], attempt: Callable[[list[Key]], dict[Key, Answer]]
    ) -> dict[Key, Answer]:
        """Again what met a broker that is away or a topic that moves."""
        found: dict[Key, Answer] = {}
        for pause in (*_PAUSES_SECONDS, None):
            waiting = [key for key in keys if key not in found or _passes(found[key])]
            if not waiting or (found and pause is None):
                break
            if found:
                threading.Event().wait(pause)
            found |= attempt(waiting)
        return found

    def _has_reader(self, topic: str) -> bool:
        reader = self._readers.get(topic)
        if reader is None:
            return False
        connection = reader.connection
        if self._connections.get(connection.url) is connection and (
            reader.consumer_id not in connection.closed_consumers
        ):
            return True
        connection.closed_consumers.discard(reader.consumer_id)
        del self._readers[topic]
        return False

    def _subscribe_readers(self, topics: list[str]) -> dict[str, Answer]:
        """Readers that stay, for these topics; those that could not be made."""
        made, lost = self._subscribe({topic: (topic, LATEST) for topic in topics})
        self._readers |= made
        return lost

    def _subscribe(
        self, wanted: dict[Key, tuple[str, Place]]
    ) -> tuple[dict[Key, _Consumer], dict[Key, Answer]]:
        """Readers at these places, and why others are not there."""
        owners = self._owners_of({topic for topic, _ in wanted.values()})
        lost: dict[Key, Answer] = {}
        readers: dict[Key, _Consumer] = {}
        builds: dict[Key, Build] = {}
        for key, (topic, place) in wanted.items():
            owner = owners[topic]
            if isinstance(owner, PipelineError):
                lost[key] = owner
                continue
            readers[key] = _Consumer(owner, owner.new_consumer_id())
            builds[key] = self._subscribing(topic, place, readers[key].consumer_id)
        answers = self._ask({key: (readers[key].connection, build) for key, build in builds.items()})
        for key, answer in answers.items():
            if isinstance(answer, PipelineError):
                topic = wanted[key][0]
                del readers[key]
                self._owners.pop(topic, None)
                gone = isinstance(answer, Refused) and answer.code in _GONE
                lost[key] = missing(topic) if gone else answer
        return readers, lost

    def _subscribing(self, topic: str, place: Place, consumer_id: int) -> Build:
        name = f"{self._access.reader_name}-{uuid.uuid4().hex[:16]}"
        return lambda number: subscribe_reader(
            topic, place, number, subscription=name, consumer_id=consumer_id
        )

    def _ask_consumers(self, consumers: list[_Consumer], build: Callable[[int, int], bytes]) -> list[Answer]:
        answers = self._ask(
            {
                index: (consumer.connection, _of_consumer(build, consumer.consumer_id))
                for index, consumer in enumerate(consumers)
            }
        )
        return [answers[index] for index in range(len(consumers))]

    def _ask(self, asked: dict[Key, tuple[SharedConnection, Build]]) -> dict[Key, Answer]:
        by_connection: dict[SharedConnection, list[Build]] = {}
        keys: dict[SharedConnection, list[Key]] = {}
        for key, (connection, build) in asked.items():
            by_connection.setdefault(connection, []).append(build)
            keys.setdefault(connection, []).append(key)
        found: dict[Key, Answer] = {}
        for connection, answers in ask_all(by_connection).items():
            found |= dict(zip(keys[connection], answers, strict=True))
            if any(isinstance(answer, BrokerUnreachable) for answer in answers):
                self._drop(connection)
        return found

    # -- brokers --------------------------------------------------------------------------------------------

    def _of_any_broker(self, builds: list[Build]) -> list[Answer]:
        def attempt(waiting: list[int]) -> dict[int, Answer]:
            connection = self._connected(None)
            return self._ask({index: (connection, builds[index]) for index in waiting})

        answers = self._persistently(list(range(len(builds))), attempt)
        return [answers[index] for index in range(len(builds))]

    def _owners_of(self, topics: set[str]) -> dict[str, SharedConnection | PipelineError]:
        """By LOOKUP, which is sent again to the broker that another refers to."""
        found: dict[str, SharedConnection | PipelineError] = {}
        for topic in topics:
            if (connection := self._connections.get(self._owners.get(topic, ""))) is not None:
                found[topic] = connection
        waiting: dict[str, tuple[str | None, bool]] = dict.fromkeys(topics - found.keys(), (None, False))
        for _ in range(REDIRECTS_MAX):
            if not waiting:
                return found
            asked: dict[str, tuple[SharedConnection, Build]] = {}
            for topic, (url, authoritative) in waiting.items():
                try:
                    asked[topic] = (self._connected(url), _looking_up(topic, authoritative))
                except BrokerUnreachable as error:
                    found[topic] = error
            waiting = {}
            for topic, answer in self._ask(asked).items():
                if isinstance(answer, Refused):
                    found[topic] = refused_lookup(topic, answer)
                    continue
                if isinstance(answer, PipelineError):
                    found[topic] = answer
                    continue
                connection = asked[topic][0]
                url, serves = target_of(answer, connection.url)
                if not serves:
                    waiting[topic] = (url, answer.authoritative)
                    continue
                try:
                    found[topic] = self._connected(url)
                    self._owners[topic] = url
                except BrokerUnreachable as error:
                    found[topic] = error
        for topic in waiting:
            found[topic] = PipelineError(
                f"{topic}: brokers refer to each other {REDIRECTS_MAX} times; none of them serves it"
            )
        return found

    def _connected(self, url: str | None) -> SharedConnection:
        """Raises `BrokerUnreachable`."""
        kept = self._connections.get(url or self._service_url or "")
        if kept is not None:
            return kept
        made = SharedConnection(Connection.open(self._access, url))
        if url is None:
            self._service_url = made.url
        self._connections[url or made.url] = made
        return made

    def _drop(self, connection: SharedConnection) -> None:
        connection.close()
        self._connections = {url: kept for url, kept in self._connections.items() if kept is not connection}

    def _drop_lost(self, error: BrokerUnreachable, connections: list[SharedConnection]) -> None:
        """All that may be the one that is lost."""
        for connection in set(connections):
            self._drop(connection)

    def catch_up(self) -> None:
        """See which readers brokers have closed meanwhile, and answer their PINGs."""
        for connection in list(self._connections.values()):
            try:
                connection.catch_up()
            except BrokerUnreachable:
                self._drop(connection)


def _parts(name: TopicName, partitions: int) -> list[str]:
    return [str(name.partition(index)) for index in range(partitions)] if partitions else [str(name)]


def _last_message_id(number: int, consumer_id: int) -> bytes:
    return client_commands.last_message_id(number, consumer_id)


def _of_consumer(build: Callable[[int, int], bytes], consumer_id: int) -> Build:
    return lambda number: build(number, consumer_id)


def _asking_partitions(topic: str) -> Build:
    return lambda number: client_commands.partitioned_metadata(number, topic, create=False)


def _looking_up(topic: str, authoritative: bool) -> Build:
    return lambda number: client_commands.lookup(number, topic, authoritative=authoritative)


def _give_up(reader: _Consumer) -> None:
    """Close it; its connection may be lost."""
    connection, consumer_id = reader
    try:
        connection.tell(client_commands.close_consumer(connection.new_request_id(), consumer_id))
    except BrokerUnreachable:
        return
    connection.closed_consumers.discard(consumer_id)
    connection.facts.pop(consumer_id, None)


def _passes(answer: Answer) -> bool:
    """Whether another attempt may help."""
    return isinstance(answer, BrokerUnreachable) or (isinstance(answer, Refused) and answer.code in _MOVING)
