"""What a driver asks about many topics at once, over one connection for each broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from geminga.client.session import Build
from geminga.errors import ServerError
from geminga.names import TopicName
from geminga.pipeline.client.entry_stream import subscribe_reader
from geminga.pipeline.client.owning_brokers import (
    LOST_CONSUMER,
    Consumer,
    OwningBrokers,
    Subscribing,
    last_message_id,
    persistently,
    retryable,
)
from geminga.pipeline.client.shared_connection import PIPELINED_MAX, Answer, EntryFacts, OfConsumer
from geminga.pipeline.client.topics import Last, full_name, missing
from geminga.pipeline.columns.message_id import LATEST, MessageId, of_message_id
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError, Refused, TopicMissing
from geminga.wire import client_commands

_ENTRY_SECONDS = 10.0
_GONE = (ServerError.TOPIC_NOT_FOUND, ServerError.METADATA)

Key = TypeVar("Key")


class TopicQuestions:
    """Asks brokers where topics end, how long their ledgers are, and what single entries hold.

    Keeps, for topics that were asked where they end, a reader that receives nothing. Not for several threads.
    Close it, which closes the connections too.
    """

    def __init__(self, access: Access) -> None:
        self.brokers = OwningBrokers(access)
        """Others may ask over the same connections."""
        self._readers: dict[str, Consumer] = {}

    def __enter__(self) -> TopicQuestions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.brokers.close()
        self._readers.clear()

    # -- questions ------------------------------------------------------------------------------------------

    def request(self, build: Build) -> Any:
        """The answer of any broker. Raises `PipelineError`."""
        (answer,) = self.brokers.ask_any([build])
        if isinstance(answer, PipelineError):
            raise answer
        return answer

    def partitions(self, topics: Sequence[str]) -> list[str]:
        """The topics to read: partitions by their own names. Raises `TopicMissing`."""
        names = [full_name(topic) for topic in topics]
        answers = self.brokers.ask_any([_asking_partitions(str(name)) for name in names])
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
            answers = self._ask_consumers([self._readers[topic] for topic in asked], last_message_id)
            found = lost | dict(zip(asked, answers, strict=True))
            for topic, answer in found.items():
                if isinstance(answer, Refused) and answer.code in LOST_CONSUMER and topic in self._readers:
                    found[topic] = BrokerUnreachable(f"{topic}: the broker closed the reader")
                    del self._readers[topic]
            return found

        found: dict[str, Last | TopicMissing] = {}
        for topic, answer in persistently(self.brokers.access, list(topics), ask).items():
            if isinstance(answer, TopicMissing):
                found[topic] = answer
                continue
            if isinstance(answer, PipelineError):
                raise answer
            message_id = of_message_id(answer.last_message_id)
            found[topic] = Last(None if message_id.entry_id < 0 else message_id)
        return found

    def load_of(self, topic: str) -> object | None:
        """The same object as long as a broker has the topic loaded. None: not known until `lasts` asks."""
        return self._readers[topic] if self._has_reader(topic) else None

    def last_before(self, asked: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
        """For each topic and ledger, the last entry that comes before the ledger: the length of the
        ledger before it, without reading anything. Entry id -1: nothing is before it. Raises `PipelineError`.
        """
        answers = self._with_readers_at(
            [(topic, MessageId(ledger_id, 0, 0)) for topic, ledger_id in asked],
            lambda readers: self._ask_consumers(readers, last_message_id),
        )
        return [of_message_id(answer.consumer_mark_delete_position).entry for answer in answers]

    def first_entries(self, asked: Sequence[tuple[str, MessageId]]) -> list[EntryFacts | None]:
        """Of each topic the first entry at an id or after it; None: none arrived. Raises `PipelineError`."""
        return self._with_readers_at(asked, self._receive_one)

    def _receive_one(self, readers: list[Consumer]) -> list[Answer | None]:
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
                for lost in {reader.connection for reader in some}:
                    self.brokers.drop(lost)
                found += [error] * len(some)
                continue
            found += [reader.connection.facts.pop(reader.consumer_id, None) for reader in some]
        return found

    # -- one round of them ----------------------------------------------------------------------------------

    def _with_readers_at(
        self, asked: Sequence[tuple[str, MessageId]], ask: Callable[[list[Consumer]], list[Any]]
    ) -> list[Any]:
        """What `ask` finds for readers that begin at these ids; closes them afterwards."""

        def attempt(waiting: list[int]) -> dict[int, Answer]:
            readers, found = self._subscribe({key: asked[key] for key in waiting})
            answers = ask(list(readers.values()))
            found |= dict(zip(readers, answers, strict=True))
            for reader in readers.values():
                self.brokers.close_consumer(reader)
            return {key: retryable(asked[key][0], answer) for key, answer in found.items()}

        found = persistently(self.brokers.access, list(range(len(asked))), attempt)
        for answer in found.values():
            if isinstance(answer, PipelineError):
                raise answer
        return [found[key] for key in range(len(asked))]

    def _subscribe_readers(self, topics: list[str]) -> dict[str, Answer]:
        """Readers that stay, for these topics; those that could not be made."""
        made, lost = self._subscribe({topic: (topic, LATEST) for topic in topics})
        self._readers |= made
        return lost

    def _subscribe(
        self, wanted: Mapping[Key, tuple[str, MessageId]]
    ) -> tuple[dict[Key, Consumer], dict[Key, Answer]]:
        """Readers that begin at these ids, and why others could not be opened."""
        return self.brokers.subscribe(
            {
                key: Subscribing(topic, self._subscribing(topic, message_id))
                for key, (topic, message_id) in wanted.items()
            }
        )

    def _subscribing(self, topic: str, message_id: MessageId) -> Callable[[int, int], bytes]:
        name = f"{self.brokers.access.reader_name}-{uuid.uuid4().hex[:16]}"
        return lambda number, consumer_id: subscribe_reader(
            topic, message_id, number, subscription=name, consumer_id=consumer_id
        )

    def _has_reader(self, topic: str) -> bool:
        reader = self._readers.get(topic)
        if reader is None:
            return False
        if self.brokers.has(reader):
            return True
        del self._readers[topic]
        return False

    def _ask_consumers(self, consumers: list[Consumer], build: Callable[[int, int], bytes]) -> list[Answer]:
        answers = self.brokers.ask(
            {
                index: (consumer.connection, OfConsumer(build, consumer.consumer_id))
                for index, consumer in enumerate(consumers)
            }
        )
        return [answers[index] for index in range(len(consumers))]


def _parts(name: TopicName, partitions: int) -> list[str]:
    return [str(name.partition(index)) for index in range(partitions)] if partitions else [str(name)]


def _asking_partitions(topic: str) -> Build:
    return lambda number: client_commands.partitioned_metadata(number, topic, create=False)
