"""One producer of one topic: its pending entries and its receipts."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from geminga import limits
from geminga.broker.flow.rates import Rate
from geminga.errors import (
    ChecksumMismatch,
    GemingaError,
    NotAllowed,
    TopicTerminated,
    TransactionsNotServed,
)
from geminga.wire import encoder
from geminga.wire.commands import unsigned

if TYPE_CHECKING:
    from geminga.broker.flow.outbox import Outbox
    from geminga.wire.decoder import Send

log = logging.getLogger("geminga.broker")

NOWHERE = unsigned(-1)
"""Ledger and entry id in the receipt of a duplicate, as in Pulsar."""

# The id in a CLOSE_PRODUCER that answers no request, as in Pulsar.
NO_REQUEST = -1
REFUSALS_HELD_MAX = 1000
"""Refusals of one producer that wait for receipts. Beyond it they are sent at once, out of order: only a
client that goes on sending what is refused, while a sync takes long, gets there.
"""


class HeldRefusals:
    """SEND_ERRORs of one producer that wait for the answers to the entries before them."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, bytes]] = deque()
        """(the number of answers since the first of these was held that come before it, SEND_ERROR)"""
        self._answers = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: bytes, pending: int) -> None:
        """Hold a SEND_ERROR behind the answers to `pending` entries."""
        self._frames.append((self._answers + pending, frame))

    def merge(self, answers: list[bytes]) -> list[bytes]:
        """The next answers, and after each of them the SEND_ERRORs that waited for it."""
        frames, merged = self._frames, list[bytes]()
        for answer in answers:
            merged.append(answer)
            self._answers += 1
            while frames and frames[0][0] <= self._answers:
                merged.append(frames.popleft()[1])
        return merged


def _not_throttled(until_s: float) -> None:
    pass


class Producer:
    """Counts the entries of its client, and writes their receipts in the same order.

    Only `confirm` writes a receipt, and only after the entry is durable.
    """

    __slots__ = (
        "_held",
        "_on_idle",
        "_receipts",
        "access_mode",
        "address",
        "byte_rate",
        "bytes_in",
        "client_version",
        "closed",
        "connected_since_ms",
        "epoch",
        "given_up",
        "message_bytes_max",
        "message_rate",
        "messages_in",
        "metadata",
        "name",
        "outbox",
        "pending",
        "producer_id",
        "schema_version",
        "throttle",
        "user_provided_name",
    )

    def __init__(
        self,
        producer_id: int,
        name: str,
        outbox: Outbox,
        *,
        message_bytes_max: int,
        epoch: int = 0,
        user_provided_name: bool = False,
        access_mode: int = 0,
        metadata: dict[str, str] | None = None,
        address: str = "",
        client_version: str = "",
        connected_since_ms: int = 0,
        schema_version: bytes = b"",
        throttle: Callable[[float], None] = _not_throttled,
    ) -> None:
        """`throttle(until_s)` is called when the producer's connection should not be read before
        that time.
        """
        self.throttle = throttle
        self.producer_id = producer_id
        self.name = name
        self.outbox = outbox
        self.message_bytes_max = message_bytes_max
        self.epoch = epoch
        self.user_provided_name = user_provided_name
        self.access_mode = access_mode
        self.metadata = metadata or {}
        self.address = address
        self.client_version = client_version
        self.connected_since_ms = connected_since_ms
        self.schema_version = schema_version
        """The version of the producer's schema, as on the wire; empty if it has none."""
        self.closed = False
        self.given_up = False
        # A count and no list: the managed ledger knows the entries and their order.
        self.pending = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.message_rate = Rate()
        self.byte_rate = Rate()
        # One encoder for each producer: all its receipts share most of their bytes, and this runs for each
        # entry.
        self._receipts = encoder.ReceiptEncoder(producer_id)
        self._on_idle: Callable[[], None] | None = None
        self._held: HeldRefusals | None = None
        """None unless it holds a refusal."""

    def take(self, send: Send) -> GemingaError | None:
        """Count an entry as pending. Returns an error if the entry is malformed."""
        size = len(send.headers_and_payload)
        if not send.checksum_ok:
            # SEND_ERROR and not the end of the connection, as in Pulsar: the client verifies its own bytes
            # then, and sends them again if they are sound.
            return ChecksumMismatch("Checksum failed on the broker, or the metadata is cut")
        # With the padding: clients compare only the payload with the maximum, and the metadata comes on top.
        # A chunk is as large as the maximum allows, so a strict bound would refuse it.
        if send.txnid is not None:
            # Stored as a plain message it would be seen by everybody, even if its transaction is aborted.
            return TransactionsNotServed("send the message without a transaction")
        if size > self.message_bytes_max + limits.FRAME_PADDING_BYTES:
            return NotAllowed(
                f"the message has {size} bytes, more than the {self.message_bytes_max} of maxMessageSize; "
                "send it in chunks or make it smaller"
            )
        self.messages_in += send.num_messages
        self.bytes_in += size
        self.pending += 1
        return None

    def accepts_size(self, size_bytes: int) -> bool:
        """Whether `take` refuses no entry that has a right checksum and up to this size."""
        return size_bytes <= self.message_bytes_max + limits.FRAME_PADDING_BYTES

    def took(self, entries: int, messages: int, size_bytes: int) -> None:
        """Count entries that the ledger has accepted as pending, in place of a `take` for each."""
        self.messages_in += messages
        self.bytes_in += size_bytes
        self.pending += entries

    def untake(self) -> None:
        """Undo the last `take`: the topic has refused the entry."""
        # The counters of messages and bytes stay: they say what the client has sent.
        self.pending -= 1

    def confirm(
        self, sequence_ids: list[int], highest_sequence_ids: list[int], ledger_id: int, first_entry_id: int
    ) -> None:
        """The oldest entries are durable, numbered from `first_entry_id`: write their receipts."""
        # In one pass: a sync confirms a burst, and the outbox took as long for each receipt as the encoder.
        ids = sequence_ids, highest_sequence_ids
        receipts: bytes | list[bytes]
        if self._held is None:
            receipts = self._receipts.encode_all(*ids, ledger_id, first_entry_id)
        else:
            encode, each = self._receipts.encode, enumerate(zip(*ids, strict=True), first_entry_id)
            single = [encode(*sequences, ledger_id, entry_id) for entry_id, sequences in each]
            receipts = self._with_held(self._held, single)
        if not self.given_up:
            self.outbox.write(receipts)
        self.pending -= len(sequence_ids)
        if self.pending == 0 and self._on_idle is not None:
            self._on_idle()

    def confirm_duplicate(self, send: Send) -> None:
        """The last entry taken is stored already: write a receipt without a position."""
        # At once, as in Pulsar, and not by `confirm`: it would pass for the receipt of an earlier entry.
        self.untake()
        if not self.given_up:
            self.outbox.write(
                self._receipts.encode(send.sequence_id, send.highest_sequence_id, NOWHERE, NOWHERE)
            )

    def fail(self, sequence_id: int, error: GemingaError) -> None:
        """The oldest pending entry will not become durable: answer SEND_ERROR."""
        if not self.given_up:
            self.write_error(sequence_id, error)
            if self._held is not None:
                self.outbox.write(self._with_held(self._held, [b""]))
        self.pending -= 1
        if self.pending == 0 and self._on_idle is not None:
            self._on_idle()

    def give_up(self, sequence_id: int, error: GemingaError) -> None:
        """Fail this entry, the oldest pending one, which takes too long. No receipt follows for it or for
        any later entry.
        """
        # Clients reconnect on this error and send all of them again. Receipts of the first attempt must not
        # settle messages of the second.
        self.write_error(sequence_id, error)
        self.given_up = True
        self._held = None

    def when_idle(self, tell: Callable[[], None]) -> None:
        """Call `tell` when every accepted entry has its receipt; at once if none is pending."""
        # Also for a producer that was given up: its entries leave the ledger one way or the other.
        if self.pending == 0:
            tell()
        else:
            self._on_idle = tell

    def close(self) -> None:
        """The producer has left its topic: from now on its SENDs are ignored."""
        # Ignored, not answered: SENDs that are on their way when the broker closes a producer are sent again
        # after the client's next lookup.
        self.closed = True

    def tell_closed(self) -> None:
        """Close the producer, and have its client look the topic up again."""
        self.close()
        self.outbox.write(encoder.close_producer(self.producer_id, NO_REQUEST))

    def refuse(self, sequence_id: int, error: GemingaError) -> None:
        """Answer SEND_ERROR to an entry that was not stored. After NotAllowed, with which the producer
        continues, the answer follows the receipts of all earlier entries. An entry of a terminated topic gets
        no answer, because its producer is closed next.
        """
        # In order, which Pulsar's broker does not keep: Java's client ignores the error of a message that is
        # not the oldest one without an answer. It then takes the next receipt for a lost one, connects again,
        # and sends again what is stored already.
        if self.pending and isinstance(error, NotAllowed):
            if self._held is None:
                self._held = HeldRefusals()
            if len(self._held) < REFUSALS_HELD_MAX:
                self._held.add(self._encode_refusal(sequence_id, error), self.pending)
                return
        self.write_error(sequence_id, error)

    def _with_held(self, held: HeldRefusals, receipts: list[bytes]) -> list[bytes]:
        answers = held.merge(receipts)
        if not held:
            self._held = None
        return answers

    def _encode_refusal(self, sequence_id: int, error: GemingaError) -> bytes:
        log.debug("%s: message %d of producer %r refused: %s", self.address, sequence_id, self.name, error)
        return encoder.send_error(self.producer_id, sequence_id, error.server_error, str(error))

    def write_error(self, sequence_id: int, error: GemingaError) -> None:
        """Answer SEND_ERROR now, unless the topic is terminated."""
        # After CLOSE_PRODUCER every client asks for its producer again, is refused with TopicTerminated, and
        # fails all pending sends with that. On SEND_ERROR with TopicTerminated, Go's client forgets the
        # producer without failing them, so that they time out, on a Pulsar broker too.
        frame = self._encode_refusal(sequence_id, error)
        if not isinstance(error, TopicTerminated):
            self.outbox.write(frame)
