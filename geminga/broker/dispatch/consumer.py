"""One consumer of a subscription: what it may be sent, what it was sent, and what it has asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from geminga import limits
from geminga.broker.dispatch.hash_ranges import RANGES_MAX, SlotRange
from geminga.broker.dispatch.pending_acks import PendingAcks
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.flow.outbox import Outbox
    from geminga.delivery_log.notes import SubscriptionNotes

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = "Exclusive", "Shared", "Failover", "Key_Shared"
SUBSCRIPTION_TYPES = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)
"""By their numbers on the wire."""
AUTO_CONSUME = pb.Schema.Type.Value("AutoConsume")
NO_EPOCH = -1
NO_REQUEST = -1

PROTOCOL_REACHED_END_OF_TOPIC = 9
PROTOCOL_ACTIVE_CONSUMER_CHANGE = 12


class DrainingSlotStatistics(msgspec.Struct, frozen=True, kw_only=True):
    hash: int
    unack_msgs: int
    blocked_attempts: int


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer at one moment, by Pulsar's field names. Times are ms since 1970, 0: never."""

    consumer_id: int
    consumer_name: str
    address: str
    client_version: str
    connected_since: int
    available_permits: int
    unacked_messages: int
    blocked_consumer_on_unacked_msgs: bool
    avg_messages_per_entry: int
    msg_out_counter: int
    bytes_out_counter: int
    message_ack_counter: int
    msg_redeliver_counter: int
    chunked_message_counter: int
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    chunked_message_rate: float
    last_acked_timestamp: int
    last_consumed_timestamp: int
    last_consumed_flow_timestamp: int
    first_messages_sent_timestamp: int
    first_consumed_flow_timestamp: int
    metadata: dict[str, str]
    read_position_when_joining: str | None = None
    key_hash_range_arrays: list[SlotRange] = []
    draining_hashes: list[DrainingSlotStatistics] = []
    draining_hashes_cleared_total: int = 0

    @property
    def draining_hashes_count(self) -> int:
        return len(self.draining_hashes)

    @property
    def draining_hashes_unacked_messages(self) -> int:
        return sum(d.unack_msgs for d in self.draining_hashes)


class Consumer:
    """Made from its SUBSCRIBE command; plain state with the rules of permits and of the unacked limit.

    Permits count messages. While a consumer is blocked, because `unacked_max` of its messages wait for their
    acknowledgement, permits that it sends are put aside until no more than half of that wait.
    """

    __slots__ = (
        "_counted",
        "acks",
        "address",
        "allows_out_of_order",
        "average_messages",
        "blocked",
        "bytes_out",
        "chunks_out",
        "client_version",
        "closed",
        "connected_since_ms",
        "consumer_id",
        "durable",
        "encoder",
        "end_of_topic_told",
        "epoch",
        "first_flow_ms",
        "first_sent_ms",
        "is_auto_consume",
        "is_sticky",
        "key_ranges",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "metadata",
        "name",
        "notes",
        "outbox",
        "pending",
        "permits",
        "permits_put_aside",
        "priority_level",
        "protocol_version",
        "rates",
        "read_compacted",
        "redelivered",
        "sub_type",
        "subscription",
        "topic",
        "unacked",
        "unacked_max",
    )

    def __init__(
        self,
        command: pb.CommandSubscribe,
        outbox: Outbox,
        *,
        address: str = "",
        client_version: str = "",
        protocol_version: int = limits.PROTOCOL_VERSION,
        connected_since_ms: int = 0,
        wants_broker_metadata: bool = False,
        partition_index: int = -1,
    ) -> None:
        self.consumer_id: int = command.consumer_id
        self.topic: str = command.topic
        self.subscription: str = command.subscription
        self.name: str = command.consumer_name
        self.sub_type = SUBSCRIPTION_TYPES[command.subType]
        self.priority_level: int = command.priority_level
        self.durable: bool = command.durable
        self.read_compacted: bool = command.read_compacted
        self.metadata: dict[str, str] = {pair.key: pair.value for pair in command.metadata}
        self.epoch: int = command.consumer_epoch if command.HasField("consumer_epoch") else NO_EPOCH
        self.is_auto_consume: bool = command.HasField("schema") and command.schema.type == AUTO_CONSUME
        """It takes the topic's schema, whatever that is."""
        meta = command.keySharedMeta
        self.is_sticky: bool = meta.keySharedMode == pb.STICKY
        self.allows_out_of_order: bool = meta.allowOutOfOrderDelivery
        self.key_ranges: Sequence[SlotRange] = [
            SlotRange(r.start, r.end)
            # A client may name as many as a frame holds, and each is an object here.
            for r in meta.hashRanges[: RANGES_MAX + 1]  # one too many is enough to be refused
        ]
        self.outbox = outbox
        self.address = address
        self.client_version = client_version
        self.protocol_version = protocol_version
        self.connected_since_ms = connected_since_ms
        # One for each consumer: it keeps the parts of a MESSAGE that only the consumer's id and the ledger
        # decide.
        self.encoder = encoder.MessageEncoder(
            self.consumer_id, partition_index, keep_stamp=wants_broker_metadata
        )
        self.pending = PendingAcks()
        """Filled for Shared and Key_Shared only."""
        self.notes: SubscriptionNotes | None = None
        """Of its subscription, where the delivery log is on."""
        self.closed = False
        """Set when it left the subscription or was disconnected: from then on nothing that it sends counts.
        """
        self.end_of_topic_told = False
        self.permits = 0
        self.permits_put_aside = 0
        self.unacked = 0
        self.unacked_max = 0
        """0: no limit (non-durable subscriptions, and types that do not count)."""
        self.blocked = False
        self._init_counters()

    def _init_counters(self) -> None:
        self.messages_out = self.bytes_out = self.chunks_out = self.acks = self.redelivered = 0
        self.average_messages = 0.0
        self.last_acked_ms = self.last_consumed_ms = self.last_flow_ms = 0
        self.first_sent_ms = self.first_flow_ms = 0
        self.rates = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._counted = (0, 0, 0, 0, 0)

    def __str__(self) -> str:
        return (
            f"Consumer{{subscription=PersistentSubscription{{topic={self.topic}, name={self.subscription}}}, "
            f"consumerId={self.consumer_id}, consumerName={self.name}, address={self.address}}}"
        )

    def note_in(self, notes: SubscriptionNotes) -> None:
        """Its subscription has the delivery log on."""
        self.notes = notes

    def close(self) -> None:
        """It left the subscription or was disconnected: from now on nothing that it sends counts."""
        self.closed = True

    # -- permits ---------------------------------------------------------------------------------------------

    def capacity(self) -> int:
        """How many messages it may be sent now; 0 when blocked, unwritable, closed, or out of permits."""
        permits = self.permits
        if permits <= 0 or self.blocked or self.closed or not self.outbox.is_writable():
            return 0
        # At least one: a limit that was lowered does not block by itself. The next message or FLOW does, and
        # sets the flag that an acknowledgement lifts.
        if self.unacked_max:
            return max(min(permits, self.unacked_max - self.unacked), 1)
        return permits

    def flow(self, permits: int, now_ms: int) -> bool:
        """Take more permits. False: it is blocked, so they count later."""
        self.last_flow_ms = now_ms
        if not self.first_flow_ms:
            self.first_flow_ms = now_ms
        # Also here, as in Pulsar's flowPermits: the limit may have been lowered since the last message was
        # sent.
        if self.unacked_max and self.unacked >= self.unacked_max:
            self.blocked = True
        if self.blocked:
            # Put aside and not added: statistics show the permits from before the block, as Pulsar's do.
            # Bounded, as a client may send FLOW for ever.
            self.permits_put_aside = min(self.permits_put_aside + permits, limits.PERMITS_MAX)
            return False
        self.permits = min(self.permits + permits, limits.PERMITS_MAX)
        return True

    def sent(self, entries: int, messages: int, bytes_sent: int, now_ms: int) -> None:
        """It was sent that many entries. `messages` do not count those of a batch that were acknowledged
        before.
        """
        # May go below zero by the last batch: the debt is paid by the next FLOW, so on average the client
        # gets what it asked for.
        self.permits -= messages
        self.messages_out += messages
        self.bytes_out += bytes_sent
        self.last_consumed_ms = now_ms
        if not self.first_sent_ms:
            self.first_sent_ms = now_ms
        average = messages / entries
        if self.average_messages:
            # Pulsar's avgPercent; the first value counts whole. Statistics show it, so the same traffic has
            # to give the same number.
            average = self.average_messages * 0.9 + average * 0.1
        self.average_messages = average

    def sent_chunks(self, count: int) -> None:
        """So many of the entries that it was sent were chunks."""
        self.chunks_out += count

    def add_unacked(self, messages: int) -> None:
        self.unacked += messages
        if self.unacked_max and self.unacked >= self.unacked_max:
            self.blocked = True

    def acked(self, messages: int, now_ms: int) -> None:
        """It has acknowledged so many messages; none, if what it sent changes nothing."""
        self.last_acked_ms = now_ms
        self.acks += messages

    def count_acks(self, messages: int) -> None:
        """So many of the messages that it holds were acknowledged, perhaps by another consumer."""
        self.acks += messages

    def subtract_unacked(self, messages: int) -> None:
        """So many of its messages do not wait for their acknowledgement any more."""
        self.unacked -= messages

    def gave_back(self, messages: int) -> None:
        """It asked for so many of its messages again, so it holds them no more."""
        self.redelivered += messages
        self.unacked -= messages
        # At once and not at half the limit: what it gave back may go to it again. Pulsar lifts the block here
        # too.
        self.unblock_below(max(self.unacked_max - 1, 0))

    def limit_unacked(self, unacked_max: int) -> bool:
        """Another bound from now on, 0: none; non-durable subscriptions have none. True: that lifted its
        block.
        """
        if not self.durable:
            return False
        self.unacked_max = unacked_max
        return self.unblock_below(unacked_max - 1 if unacked_max else 2**63)

    def raise_epoch(self, epoch: int | None) -> None:
        """Its client has asked for everything again, and drops what is of an earlier epoch."""
        # Only upwards, as in Pulsar: of a lower epoch the client would drop all that follows.
        if epoch is not None and epoch > self.epoch:
            self.epoch = epoch

    def unblock_below(self, unacked: int) -> bool:
        """Lift the block once no more than `unacked` messages wait. True: it was lifted now."""
        if not self.blocked or self.unacked > unacked:
            return False
        self.blocked = False
        self.permits = min(self.permits + self.permits_put_aside, limits.PERMITS_MAX)
        self.permits_put_aside = 0
        return True

    # -- notices ---------------------------------------------------------------------------------------------

    def tell_active(self, is_active: bool) -> None:
        """Tell it whether it is the one that gets messages, if its protocol knows of that."""
        # As in Pulsar: clients before this version do not know the command.
        if self.protocol_version >= PROTOCOL_ACTIVE_CONSUMER_CHANGE:
            self.outbox.write(encoder.active_consumer_change(self.consumer_id, is_active))

    def tell_end_of_topic(self) -> None:
        """Tell it, once, that the topic is terminated and all of it acknowledged."""
        if not self.end_of_topic_told and self.protocol_version >= PROTOCOL_REACHED_END_OF_TOPIC:
            self.end_of_topic_told = True
            self.outbox.write(encoder.reached_end_of_topic(self.consumer_id))

    def tell_closed(self) -> None:
        """Make the client leave and look the topic up again."""
        self.outbox.write(encoder.close_consumer(self.consumer_id, NO_REQUEST))

    # -- statistics ------------------------------------------------------------------------------------------

    def update_rates(self, interval_s: float) -> None:
        """Set the rates from what was counted in the last `interval_s` seconds."""
        counters = (self.messages_out, self.bytes_out, self.redelivered, self.acks, self.chunks_out)
        before, self._counted = self._counted, counters
        self.rates = tuple((now - then) / interval_s for now, then in zip(counters, before, strict=True))  # type: ignore[assignment]

    def statistics(
        self,
        *,
        ranges: list[SlotRange] | None = None,
        draining: list[DrainingSlotStatistics] | None = None,
        draining_cleared: int = 0,
    ) -> ConsumerStatistics:
        messages, throughput, redelivered, acks, chunks = self.rates
        return ConsumerStatistics(
            consumer_id=self.consumer_id,
            consumer_name=self.name,
            address=self.address,
            client_version=self.client_version,
            connected_since=self.connected_since_ms,
            available_permits=self.permits,
            unacked_messages=self.unacked,
            blocked_consumer_on_unacked_msgs=self.blocked,
            avg_messages_per_entry=round(self.average_messages),
            msg_out_counter=self.messages_out,
            bytes_out_counter=self.bytes_out,
            message_ack_counter=self.acks,
            msg_redeliver_counter=self.redelivered,
            chunked_message_counter=self.chunks_out,
            msg_rate_out=messages,
            msg_throughput_out=throughput,
            msg_rate_redeliver=redelivered,
            message_ack_rate=acks,
            chunked_message_rate=chunks,
            last_acked_timestamp=self.last_acked_ms,
            last_consumed_timestamp=self.last_consumed_ms,
            last_consumed_flow_timestamp=self.last_flow_ms,
            first_messages_sent_timestamp=self.first_sent_ms,
            first_consumed_flow_timestamp=self.first_flow_ms,
            metadata=self.metadata,
            key_hash_range_arrays=ranges or [],
            draining_hashes=draining or [],
            draining_hashes_cleared_total=draining_cleared,
        )
