"""Durable subscriptions that follow the finished messages of a stream, so that their backlog shrinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from geminga.clock import RealClock
from geminga.errors import ServerError
from geminga.pipeline.client.owning_brokers import (
    LOST_CONSUMER,
    Consumer,
    OwningBrokers,
    Subscribing,
    last_message_id,
    persistently,
)
from geminga.pipeline.client.shared_connection import Answer, OfConsumer
from geminga.pipeline.columns.message_id import MessageId, of_message_id
from geminga.pipeline.errors import BrokerUnreachable, PipelineError, Refused, TopicMissing
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

_PRIORITY_LEVEL = 2**31 - 1
"""The last level: brokers make a consumer of the first level the active one of a Failover subscription. With
the usual level 0, this consumer was active for half of the partitions and took nothing, and the
application's consumers of the subscription got nothing either.
"""
RETURN_SECONDS = 10.0
"""How long the consumers of an application may take to reconnect after an unload. Until then this consumer
may be the active one, but the application may not have received the messages that it would acknowledge.
"""
TOLD_SECONDS = 2.0
"""How long a broker may take to report to a new consumer whether it is active: it waits for
`activeConsumerFailoverDelayTimeMillis`, 1 s by default. A broker that reports nothing by then never does.
"""
_LOOK_SECONDS = 0.05
_CLOCK = RealClock()
_AGAIN_MAX = 1
"""How often an acknowledgement is retried that a broker refused although it has the consumer."""


class Subscriptions:
    """One subscription for each topic (a single partition), with a consumer that takes no messages.

    Failover consumers of an application on the subscription get all messages. While one of them is the
    active consumer, only the application acknowledges: it may not have received the messages that the stream
    has finished, and an unload would take these from it. Connections are those of `brokers`.
    """

    def __init__(self, brokers: OwningBrokers, subscription_of: Callable[[str], str]) -> None:
        """`subscription_of` names the subscription of a topic."""
        self._brokers = brokers
        self._subscription_of = subscription_of
        self._consumers: dict[str, Consumer] = {}
        self._done: dict[str, MessageId] = {}
        self._held_until_s: dict[str, float] = {}
        """By topic, set when an application's consumer was active at the time the broker closed all
        consumers.
        """
        self._told_by_s: dict[str, float] = {}
        """Until when the broker may report whether this consumer is the active one."""

    def open(self, topics: Iterable[str]) -> None:
        """Create missing subscriptions at the beginning of their topics; the first `acknowledge` sets the
        position from which they count. Raises `TopicMissing`, `PipelineError`.

        The other calls create a missing subscription at the end of its topic. It existed before, so it was
        deleted, with its topic or alone. A new one at the beginning would look as if it had acknowledged all
        earlier messages, and a loss of messages would not be reported.
        """
        for answer in self._ask_each(dict.fromkeys(topics, last_message_id), earliest=True).values():
            if isinstance(answer, PipelineError):
                raise answer

    def mark_deletes(self, topics: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        """The position up to which everything is acknowledged; None if the broker does not report it. Raises
        `TopicMissing`, `PipelineError`.
        """
        found: dict[str, tuple[int, int] | None] = {}
        for topic, answer in self._ask_each(dict.fromkeys(topics, last_message_id)).items():
            if isinstance(answer, PipelineError):
                raise answer
            found[topic] = None
            if answer.HasField("consumer_mark_delete_position"):
                found[topic] = of_message_id(answer.consumer_mark_delete_position).entry
        return found

    def acknowledge(self, ends: Mapping[str, MessageId]) -> None:
        """Acknowledge all entries before the entry of each end. Durable as far as the broker persists it.

        An entry that was read in part is not acknowledged yet. If a broker is unavailable, a topic is gone,
        or an application acknowledges, nothing happens, and the next call catches up. Raises
        `PipelineError`.
        """
        waiting = {
            topic: end for topic, end in ends.items() if end.entry_id > 0 and self._done.get(topic) != end
        }

        def build(topic: str) -> Callable[[int, int], bytes]:
            position = (waiting[topic].ledger_id, waiting[topic].entry_id - 1)
            return lambda number, consumer_id: client_commands.ack(
                consumer_id, [position], cumulative=True, request_id=number
            )

        answers = self._ask_each({topic: build(topic) for topic in waiting}, only_active=True)
        for topic, answer in answers.items():
            if answer is None or isinstance(answer, BrokerUnreachable | TopicMissing):
                continue
            if isinstance(answer, PipelineError):
                raise answer
            self._done[topic] = waiting[topic]

    # -- consumers ------------------------------------------------------------------------------------------

    def _ask_each(
        self,
        builds: Mapping[str, Callable[[int, int], bytes]],
        *,
        earliest: bool = False,
        only_active: bool = False,
    ) -> dict[str, Answer]:
        """The answers for consumers, which subscribe again if a broker has closed them. With `only_active`,
        None where an application's consumer is the active one.

        A broker that unloads a topic closes its consumers and leaves the connection open; it refuses
        requests in between as from an unknown consumer.
        """
        refusals: dict[str, int] = dict.fromkeys(builds, 0)

        def attempt(waiting: list[str]) -> dict[str, Answer]:
            new = [topic for topic in waiting if not self._has_consumer(topic)]
            found = self._subscribe(new, earliest)
            if only_active:
                # Brokers tell a consumer whether it is the active one before they answer its next request.
                self._ask({topic: last_message_id for topic in new if topic not in found})
                found |= {topic: None for topic in waiting if topic not in found and self._is_anothers(topic)}
            answers = self._ask({topic: builds[topic] for topic in waiting if topic not in found})
            for topic, answer in answers.items():
                found[topic] = answer
                if not isinstance(answer, Refused) or answer.code not in LOST_CONSUMER:
                    continue
                was_closed = not self._has_consumer(topic)
                self._consumers.pop(topic, None)
                refusals[topic] += not was_closed
                if refusals[topic] <= _AGAIN_MAX:
                    found[topic] = BrokerUnreachable(f"{topic}: the broker closed the consumer")
            return found

        return persistently(self._brokers.access, list(builds), attempt)

    def _ask(self, builds: Mapping[str, Callable[[int, int], bytes]]) -> dict[str, Answer]:
        """Send the requests for topics that have a consumer."""
        return self._brokers.ask(
            {
                topic: (
                    self._consumers[topic].connection,
                    OfConsumer(build, self._consumers[topic].consumer_id),
                )
                for topic, build in builds.items()
            }
        )

    def _wait_until_told(self, topics: list[str]) -> None:
        """Which of the consumers are the active ones. A run over the available messages ends with its
        acknowledgements, so these must not be left to the next call.
        """
        self._brokers.catch_up([self._consumers[topic] for topic in topics])
        while untold := [self._consumers[topic] for topic in topics if self._may_be_told(topic)]:
            self._brokers.catch_up(untold, _LOOK_SECONDS)

    def _may_be_told(self, topic: str) -> bool:
        consumer = self._consumers[topic]
        return (
            self._brokers.is_active(consumer) is None
            and self._brokers.is_open(consumer)
            and not self._is_anothers(topic)
            and self._told_by_s[topic] > _CLOCK.monotonic_s()
        )

    def _is_anothers(self, topic: str) -> bool:
        """Whether an application acknowledges, or is about to reconnect."""
        return (
            self._brokers.is_active(self._consumers[topic]) is False
            or self._held_until_s.get(topic, -math.inf) > _CLOCK.monotonic_s()
        )

    def _subscribe(self, topics: list[str], earliest: bool) -> dict[str, Answer]:
        """Subscribe; returns those that failed."""
        made, lost = self._brokers.subscribe(
            {topic: Subscribing(topic, self._subscribing(topic, earliest)) for topic in topics}
        )
        self._consumers |= made
        self._told_by_s |= dict.fromkeys(made, _CLOCK.monotonic_s() + TOLD_SECONDS)
        return {topic: self._reworded(topic, answer) for topic, answer in lost.items()}

    def _subscribing(self, topic: str, earliest: bool) -> Callable[[int, int], bytes]:
        return lambda number, consumer_id: client_commands.subscribe(
            number,
            consumer_id,
            topic,
            self._subscription_of(topic),
            sub_type=pb.CommandSubscribe.Failover,
            earliest=earliest,
            priority_level=_PRIORITY_LEVEL,
            create_topic=False,
        )

    def _reworded(self, topic: str, answer: Answer) -> Answer:
        if not isinstance(answer, Refused) or answer.code in (
            ServerError.SERVICE_NOT_READY,
            ServerError.TOO_MANY_REQUESTS,
        ):
            return answer
        return PipelineError(
            f"{topic}: cannot use subscription {self._subscription_of(topic)!r} (predefinedSubscription): "
            f"{answer}; consumers of another type may be connected to it"
        )

    def _has_consumer(self, topic: str) -> bool:
        consumer = self._consumers.get(topic)
        if consumer is None:
            return False
        # Ours may be the active one of a topic that is unloaded again before the application is back.
        was_anothers = self._is_anothers(topic)
        if self._brokers.has(consumer):
            return True
        if was_anothers:
            self._held_until_s[topic] = _CLOCK.monotonic_s() + RETURN_SECONDS
        del self._consumers[topic]
        return False
