"""What topics there are, their partitions, and where they end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from geminga.errors import InvalidName, ServerError
from geminga.names import TopicName
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.errors import TOPICS_PATTERN, Option, PipelineError, Refused, TopicMissing
from geminga.wire import client_commands


class Asks(Protocol):
    """What a broker can be asked over."""

    def request(self, build: Callable[[int], bytes]) -> Any: ...


@dataclass(frozen=True)
class Last:
    """The end of a topic. `message_id` None: it is empty."""

    message_id: MessageId | None

    @property
    def end(self) -> MessageId:
        """The first id after it."""
        if self.message_id is None:
            return EARLIEST
        return MessageId(self.message_id.ledger_id, self.message_id.entry_id + 1, 0)


class Ledger(NamedTuple):
    """One ledger of a topic, or what is known of it. `size_bytes` 0: not known."""

    ledger_id: int
    entries: int
    size_bytes: int = 0


class Added(NamedTuple):
    """The ledgers of a topic at one moment, in order, and how many entries were added since it was loaded."""

    entries: int
    ledgers: tuple[Ledger, ...]

    def before(self, ledger_id: int) -> int | None:
        """How many were added before the ledger began, negative if it began before the topic was loaded.
        None: the ledger is not there.
        """
        if all(ledger.ledger_id != ledger_id for ledger in self.ledgers):
            return None
        return self.entries - sum(each.entries for each in self.ledgers if each.ledger_id >= ledger_id)

    def begins_as(self, other: Added) -> bool:
        """Whether both say the same of the ledger that is written to."""
        if not self.ledgers:
            return False
        last = self.ledgers[-1].ledger_id
        return self.before(last) == other.before(last)


def partitions_of(connection: Asks, topic: str, *, create: bool = False) -> list[str]:
    """The topics to read or write for `topic`: its partitions, or itself. Raises `TopicMissing`."""
    name = full_name(topic)
    try:
        answer = connection.request(
            lambda number: client_commands.partitioned_metadata(number, str(name), create=create)
        )
    except Refused as error:
        if error.code in (ServerError.TOPIC_NOT_FOUND, ServerError.METADATA):
            raise missing(str(name)) from None
        raise
    if answer.partitions == 0:
        return [str(name)]
    return [str(name.partition(index)) for index in range(answer.partitions)]


def missing(topic: str) -> TopicMissing:
    return TopicMissing(
        f"topic {topic} is not there; check the name, create it, or ",
        Option("waitingForNonExistedTopic", "true", "set"),
        " (brokers delete a topic that has had neither a subscription nor a client for a minute; a "
        "subscription keeps it, or the broker's setting brokerDeleteInactiveTopicsEnabled=false)",
    )


def missing_for_writer(topic: str) -> TopicMissing:
    """Of a topic that the broker did not make for a writer that asked for it."""
    namespace = TopicName.parse(topic).namespace
    return TopicMissing(
        f"topic {topic} cannot be written to: it or its namespace is missing; check the name, create the "
        f"namespace (geminga or pulsar-admin namespaces create {namespace}), or create the topic (geminga or "
        f"pulsar-admin topics create {topic}) if the broker makes none by itself"
    )


def full_name(topic: str) -> TopicName:
    try:
        return TopicName.parse(topic)
    except InvalidName as error:
        raise PipelineError(str(error)) from None


def matching(connection: Asks, pattern: str) -> list[str]:
    """Topics whose full name matches the regular expression, partitioned ones once, without partitions.

    The pattern is `[persistent://]tenant/namespace/expression` or an expression for public/default.
    """
    plain = pattern.removeprefix("persistent://")
    parts = plain.split("/", 2)
    namespace = "/".join(parts[:2]) if len(parts) == 3 else "public/default"
    expression = parts[2] if len(parts) == 3 else plain
    try:
        wanted = re.compile(expression)
    except re.error as error:
        raise PipelineError(TOPICS_PATTERN, f" {pattern!r} is not a regular expression: {error}") from None
    answer = connection.request(lambda number: client_commands.topics_of_namespace(number, namespace))
    names = {TopicName.parse(topic).partitioned_name for topic in answer.topics}
    return sorted(
        str(name) for name in names if wanted.fullmatch(name.local) and not name.local.startswith("__")
    )
