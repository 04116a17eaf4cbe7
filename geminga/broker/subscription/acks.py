"""Acknowledgements that carry more than whole entries: cumulative, parts of batches, validation errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED, Consumer
from geminga.broker.dispatch.pending_acks import SIZE_MASK
from geminga.errors import NotAllowed
from geminga.managed_ledger.cursor.batch_index import ACK_SET_WORDS_MAX, WORD_BITS, bits_of
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.delivery_log.notes import SubscriptionNotes

NAMED_POSITIONS_MAX = 10
"""Positions that a log line names."""
INDIVIDUAL_TYPES = (SHARED, KEY_SHARED)


def acknowledge_cumulative(
    subscription: Subscription,
    consumer: Consumer,
    position: tuple[int, int],
    ack_set: Sequence[int] = (),
) -> None:
    """Acknowledge up to and with `position`; of a batch there only what `ack_set` has no bit for."""
    if consumer.closed:
        return
    now_ms = consumer.last_acked_ms = subscription.clock.now_ms()
    if consumer.sub_type in INDIVIDUAL_TYPES:
        subscription.log.warning(
            "%s: cumulative ack on a %s subscription is ignored", consumer, consumer.sub_type
        )
        return
    consumer.acks += 1
    cursor = subscription.cursor
    if subscription.notes is not None:
        _note_cumulative(subscription.notes, subscription, consumer, position, ack_set)
    if ack_set:
        cursor.acknowledge_cumulative(Position(position[0], position[1] - 1))
        if subscription.settings.batch_index_acks and not _is_too_long(subscription, consumer, ack_set):
            cursor.acknowledge_batch_index(position, ack_set, WORD_BITS * len(ack_set))
    else:
        cursor.acknowledge_cumulative(position)
    subscription.after_acks(now_ms)


def _note_cumulative(
    notes: SubscriptionNotes,
    subscription: Subscription,
    consumer: Consumer,
    position: tuple[int, int],
    ack_set: Sequence[int],
) -> None:
    """What a cumulative acknowledgement does: of a batch in the middle only what comes before its first
    wanted message.
    """
    first_wanted = 0
    if subscription.settings.batch_index_acks and 0 < len(ack_set) <= ACK_SET_WORDS_MAX:
        bits = bits_of(ack_set)
        first_wanted = (bits & -bits).bit_length() - 1
    if first_wanted > 0:
        notes.acked_up_to(consumer.name, position, first_wanted - 1)
    else:
        notes.acked_up_to(consumer.name, (position[0], position[1] - 1) if ack_set else position)


def acknowledge_command(subscription: Subscription, consumer: Consumer, command: pb.CommandAck) -> None:
    """Acknowledge what the command says. Raises NotAllowed when it belongs to a transaction; then nothing is
    done.
    """
    if consumer.closed:
        return
    if command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits"):
        raise NotAllowed("Server don't support transaction ack!")
    if command.HasField("validation_error"):
        _log_validation_error(subscription, consumer, command)
    if command.ack_type == pb.CommandAck.Cumulative:
        if len(command.message_id) != 1:
            subscription.log.warning(
                "%s: a cumulative ack of %d messages is ignored", consumer, len(command.message_id)
            )
            return
        message_id = command.message_id[0]
        position = Position(message_id.ledgerId, message_id.entryId)
        acknowledge_cumulative(subscription, consumer, position, message_id.ack_set)
        return
    whole: list[tuple[int, int]] = []
    for message_id in command.message_id:
        position = Position(message_id.ledgerId, message_id.entryId)
        if not message_id.ack_set or _completes(subscription, consumer, position, message_id.ack_set):
            whole.append(position)
    if whole:
        subscription.acknowledge(consumer, whole)
    elif command.message_id:
        consumer.last_acked_ms = subscription.clock.now_ms()


def _completes(
    subscription: Subscription, consumer: Consumer, position: Position, ack_set: Sequence[int]
) -> bool:
    """Acknowledge a part of a batch. True: that was the last of it, and the entry is still to be settled as a
    whole.
    """
    if not subscription.settings.batch_index_acks:
        # As Pulsar without the setting: the entry counts only when all of it is acknowledged, and then
        # without a set.
        return False
    if _is_too_long(subscription, consumer, ack_set):
        return False
    cursor = subscription.cursor
    books = subscription.dispatcher.books if subscription.dispatcher is not None else None
    owner, packed = consumer, 0
    if books is not None:
        owner = books.owner_of(consumer, position)
        packed = owner.pending.get(*position)
    size = packed & SIZE_MASK or WORD_BITS * len(ack_set)
    ack_set = ack_set[: -(-size // WORD_BITS)]
    before = cursor.ack_set(position)
    left_before = size if before is None else bits_of(before).bit_count()
    wanted = bits_of(ack_set) & ((1 << size) - 1)
    if before is not None:
        wanted &= bits_of(before)
    if not wanted:
        return True
    cursor.acknowledge_batch_index(position, ack_set, size)
    if subscription.notes is not None:
        held = bits_of(before) if before is not None else (1 << size) - 1
        subscription.notes.acked_messages(consumer.name, position, held & ~wanted, size)
    if packed and books is not None:
        acked = left_before - wanted.bit_count()
        owner.acks += acked
        books.release(owner, acked)
    return False


def _is_too_long(subscription: Subscription, consumer: Consumer, ack_set: Sequence[int]) -> bool:
    """Whether an ack set has more words than any batch needs whose messages are told apart."""
    if len(ack_set) <= ACK_SET_WORDS_MAX:
        return False
    subscription.log.warning("%s: an ack set of %d words is ignored", consumer, len(ack_set))
    return True


def _log_validation_error(subscription: Subscription, consumer: Consumer, command: pb.CommandAck) -> None:
    count = len(command.message_id)
    named = [f"{m.ledgerId}:{m.entryId}" for m in command.message_id[:NAMED_POSITIONS_MAX]]
    if count > len(named):
        named.append(f"{count - len(named)} others")
    reason = pb.CommandAck.ValidationError.Name(command.validation_error)
    subscription.log.warning(
        "%s: ack for corrupted message at %s - Reason: %s", consumer, ", ".join(named), reason
    )
