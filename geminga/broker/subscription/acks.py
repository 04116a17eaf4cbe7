"""Acknowledgements of a subscription: whole entries, cumulative ones, parts of batches, and on behalf of no
consumer. Each settles what the dispatcher has pending and then moves the cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.pending_acks import SIZE_MASK
from geminga.broker.subscription.consumers import INDIVIDUAL_TYPES
from geminga.errors import TransactionsNotServed
from geminga.managed_ledger.cursor.batch_index import ACK_SET_WORDS_MAX, WORD_BITS, bits_of
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.dispatch.consumer import Consumer
    from geminga.broker.dispatch.settings import Surroundings
    from geminga.broker.subscription.consumers import Consumers
    from geminga.delivery_log.notes import SubscriptionNotes

NAMED_POSITIONS_MAX = 10
"""Positions that a log line names."""


class Acks:
    """Where all acknowledgements of one subscription come in. Everything here is a plain call on the loop.

    The dispatcher hears of an entry before the cursor does: it asks the cursor how many messages of a batch
    were left, and must not send again what is acknowledged a line later.
    """

    __slots__ = (
        "_around",
        "_clock",
        "_consumers",
        "_cursor",
        "_ledger",
        "_mark_delete_seen",
        "_notes",
        "last_mark_delete_advanced_ms",
    )

    def __init__(self, around: Surroundings, consumers: Consumers) -> None:
        self._around = around
        self._clock = around.clock
        self._consumers = consumers
        self._cursor = around.cursor
        self._ledger = around.ledger
        self._notes = consumers.notes
        self._mark_delete_seen = around.cursor.mark_delete
        self.last_mark_delete_advanced_ms = 0
        """ms since 1970; 0: never."""

    # -- by a consumer ---------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        """Acknowledge whole entries. Positions that are no entry, or acknowledged already, do no harm."""
        dispatcher = self._consumers.dispatcher
        # What a consumer that left had pending was given back: by now it may be with another one.
        if consumer.closed or dispatcher is None:
            return
        now_ms = self._clock.now_ms()
        if self._notes is not None:
            self._notes.acked(consumer.name, positions)
        consumer.acked(dispatcher.settle(consumer, positions), now_ms)
        if self._cursor.acknowledge(positions):
            self._advanced(now_ms)

    def acknowledge_cumulative(
        self, consumer: Consumer, position: tuple[int, int], ack_set: Sequence[int] = ()
    ) -> None:
        """Acknowledge up to and with `position`; of a batch there only what `ack_set` has no bit for. Shared
        and Key_Shared ignore it with a warning, as in Pulsar.
        """
        if consumer.closed:
            return
        now_ms = self._clock.now_ms()
        if consumer.sub_type in INDIVIDUAL_TYPES:
            # Pulsar too notes the time of an acknowledgement before it looks whether it may count.
            consumer.acked(0, now_ms)
            self._around.log.warning(
                "%s: cumulative ack on a %s subscription is ignored", consumer, consumer.sub_type
            )
            return
        # One message in the rate, as in Pulsar: how many it covers is not known without counting entries.
        consumer.acked(1, now_ms)
        if self._notes is not None:
            self._note_cumulative(self._notes, consumer, position, ack_set)
        if ack_set:
            # Up to the entry before: Pulsar's ManagedCursorImpl takes the previous position too where there
            # is an ack set.
            self._cursor.acknowledge_cumulative(Position(position[0], position[1] - 1))
            if self._around.settings.batch_index_acks and not self._is_too_long(consumer, ack_set):
                self._cursor.acknowledge_batch_index(position, ack_set, WORD_BITS * len(ack_set))
        else:
            self._cursor.acknowledge_cumulative(position)
        self._advanced(now_ms)

    def _note_cumulative(
        self,
        notes: SubscriptionNotes,
        consumer: Consumer,
        position: tuple[int, int],
        ack_set: Sequence[int],
    ) -> None:
        """What a cumulative acknowledgement does: of a batch in the middle only what comes before its first
        wanted message.
        """
        first_wanted = 0
        # The log has to say what the cursor keeps, not what the client sent: an audit goes by it.
        if self._around.settings.batch_index_acks and 0 < len(ack_set) <= ACK_SET_WORDS_MAX:
            bits = bits_of(ack_set)
            first_wanted = (bits & -bits).bit_length() - 1
        if first_wanted > 0:
            notes.acked_up_to(consumer.name, position, first_wanted - 1)
        else:
            notes.acked_up_to(consumer.name, (position[0], position[1] - 1) if ack_set else position)

    def acknowledge_command(self, consumer: Consumer, command: pb.CommandAck) -> None:
        """Acknowledge by a command that carries more than positions. Raises TransactionsNotServed when it
        belongs to a transaction; then nothing is done.
        """
        if consumer.closed:
            return
        if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
            # An acknowledgement that counts at once would commit what may be aborted. Half an id is enough,
            # because 0 is the default of both halves.
            raise TransactionsNotServed("acknowledge without a transaction")
        if command.HasField("validation_error"):
            # Logged and acknowledged all the same, as in Pulsar: the client has dropped the message.
            self._log_validation_error(consumer, command)
        if command.ack_type == pb.CommandAck.Cumulative:
            # Ignored with a warning in Pulsar as well: of several positions it does not say which one counts.
            if len(command.message_id) != 1:
                self._around.log.warning(
                    "%s: a cumulative ack of %d messages is ignored", consumer, len(command.message_id)
                )
                return
            message_id = command.message_id[0]
            position = Position(message_id.ledgerId, message_id.entryId)
            self.acknowledge_cumulative(consumer, position, message_id.ack_set)
            return
        whole: list[tuple[int, int]] = []
        for message_id in command.message_id:
            position = Position(message_id.ledgerId, message_id.entryId)
            if not message_id.ack_set or self._completes(consumer, position, message_id.ack_set):
                whole.append(position)
        if whole:
            self.acknowledge(consumer, whole)
        # Parts of batches only: they were counted at the consumer that holds the entry.
        elif command.message_id:
            consumer.acked(0, self._clock.now_ms())

    def _completes(self, consumer: Consumer, position: Position, ack_set: Sequence[int]) -> bool:
        """Acknowledge a part of a batch. True: that was the last of it, and the entry is still to be settled
        as a whole.
        """
        if not self._around.settings.batch_index_acks:
            # As Pulsar without the setting: the entry counts only when all of it is acknowledged, and then
            # without a set.
            return False
        if self._is_too_long(consumer, ack_set):
            return False
        cursor, dispatcher = self._cursor, self._consumers.dispatcher
        books = dispatcher.books if dispatcher is not None else None
        owner, packed = consumer, 0
        if books is not None:
            owner = books.owner_of(consumer, position)
            packed = owner.pending.get(*position)
        # Not pending means that the number of messages is not known: then all bits that the client sent
        # count.
        size = packed & SIZE_MASK or WORD_BITS * len(ack_set)
        # A client may send any number of words; what is beyond the batch would be kept in memory and on disk.
        ack_set = ack_set[: -(-size // WORD_BITS)]
        before = cursor.ack_set(position)
        left_before = size if before is None else bits_of(before).bit_count()
        wanted = bits_of(ack_set) & ((1 << size) - 1)
        if before is not None:
            # A set has what the client knows of: another consumer of the batch may have acknowledged more.
            wanted &= bits_of(before)
        if not wanted:
            return True
        cursor.acknowledge_batch_index(position, ack_set, size)
        if self._notes is not None:
            held = bits_of(before) if before is not None else (1 << size) - 1
            self._notes.acked_messages(consumer.name, position, held & ~wanted, size)
        # Only what is pending is in the count of unacknowledged messages.
        if packed and books is not None:
            acked = left_before - wanted.bit_count()
            owner.count_acks(acked)
            books.release(owner, acked)
        return False

    def _is_too_long(self, consumer: Consumer, ack_set: Sequence[int]) -> bool:
        """Whether an ack set has more words than any batch needs whose messages are told apart."""
        # One acknowledgement of a few megabytes of words would hold the loop, and stay in the cursor's state.
        if len(ack_set) <= ACK_SET_WORDS_MAX:
            return False
        self._around.log.warning("%s: an ack set of %d words is ignored", consumer, len(ack_set))
        return True

    def _log_validation_error(self, consumer: Consumer, command: pb.CommandAck) -> None:
        count = len(command.message_id)
        named = [f"{m.ledgerId}:{m.entryId}" for m in command.message_id[:NAMED_POSITIONS_MAX]]
        if count > len(named):
            named.append(f"{count - len(named)} others")
        reason = pb.CommandAck.ValidationError.Name(command.validation_error)
        self._around.log.warning(
            "%s: ack for corrupted message at %s - Reason: %s", consumer, ", ".join(named), reason
        )

    # -- on behalf of no consumer: skip, expiry, quotas, cancel ----------------------------------------------

    def let_go(self, positions: Sequence[Position]) -> int:
        """Acknowledge whole entries; returns how many of them were in the backlog."""
        before = self._cursor.backlog_entries()
        dispatcher = self._consumers.dispatcher
        # Any consumer will do: the books find the one that has the entry. It counts no acknowledgement for
        # it.
        if dispatcher is not None and dispatcher.consumers:
            dispatcher.settle(dispatcher.consumers[0], positions)
        self._around.delayed.passed(positions)
        if self._notes is not None:
            self._notes.acked(None, positions)
        if positions and self._cursor.acknowledge(positions):
            # At once: these may be the last of the topic, with no other acknowledgement behind them.
            self._around.delayed.mark_delete_moved(self._cursor.mark_delete)
            self._advanced(self._clock.now_ms())
        return before - self._cursor.backlog_entries()

    def skip_to(self, position: Position) -> int:
        """Acknowledge everything up to and with `position`; returns how many entries of the backlog those
        were.
        """
        before = self._cursor.backlog_entries()
        dispatcher = self._consumers.dispatcher
        # Before the cursor moves, since it knows how many messages of a batch were left: a skipped batch was
        # once taken off the books with all of its messages.
        if dispatcher is not None and position <= self._ledger.last_confirmed:
            dispatcher.settle_up_to(position)
        if self._notes is not None:
            self._notes.skipped_up_to(position)
        self._cursor.acknowledge_cumulative(position)
        self._around.delayed.mark_delete_moved(self._cursor.mark_delete)
        if dispatcher is not None:
            # After the cursor has moved: a dispatcher that stood at a damaged entry tries again behind it.
            dispatcher.skipped()
        self._advanced(self._clock.now_ms())
        return before - self._cursor.backlog_entries()

    # -- how far the cursor has come -------------------------------------------------------------------------

    def _advanced(self, now_ms: int) -> None:
        """Something was acknowledged: note how far mark-delete came, and whether the end of the topic is
        reached.
        """
        mark_delete = self._cursor.mark_delete
        seen = self._mark_delete_seen
        if mark_delete != seen:
            if mark_delete.ledger_id != seen.ledger_id:
                # A shared index lets go of what all have passed; a ledger at a time will do.
                self._around.delayed.mark_delete_moved(mark_delete)
            self._mark_delete_seen = mark_delete
            self.last_mark_delete_advanced_ms = now_ms
        if self._ledger.terminated:
            self._consumers.end_of_topic()

    def sought(self) -> None:
        """The cursor was set elsewhere: nothing was acknowledged by that."""
        self._mark_delete_seen = self._cursor.mark_delete
