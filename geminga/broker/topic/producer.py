"""One producer of one topic: its pending entries and its receipts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from geminga import limits
from geminga.broker.flow.rates import Rate
from geminga.errors import ChecksumMismatch, GemingaError, NotAllowed, TopicTerminated
from geminga.wire import encoder

if TYPE_CHECKING:
    from geminga.broker.flow.outbox import Outbox
    from geminga.wire.decoder import Send

log = logging.getLogger("geminga.broker")

# The id in a CLOSE_PRODUCER that answers no request, as in Pulsar.
NO_REQUEST = -1


def _not_throttled(until_s: float) -> None:
    pass


class Producer:
    """Counts the entries of its client, and writes their receipts in the same order.

    Only `confirm` writes a receipt, and only after the entry is durable.
    """

    __slots__ = (
        "_on_idle",
        "access_mode",
        "address",
        "byte_rate",
        "bytes_in",
        "client_version",
        "closed",
        "connected_since_ms",
        "encode_receipt",
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
        self.encode_receipt = encoder.ReceiptEncoder(producer_id).encode
        self._on_idle: Callable[[], None] | None = None

    def take(self, send: Send) -> GemingaError | None:
        """Count an entry as pending. Returns an error if the entry is malformed."""
        size = len(send.headers_and_payload)
        if not send.checksum_ok:
            # SEND_ERROR and not the end of the connection, as in Pulsar: the client verifies its own bytes
            # then, and sends them again if they are sound.
            return ChecksumMismatch("Checksum failed on the broker, or the metadata is cut")
        # With the padding: clients compare only the payload with the maximum, and the metadata comes on top.
        # A chunk is as large as the maximum allows, so a strict bound would refuse it.
        if size > self.message_bytes_max + limits.FRAME_PADDING_BYTES:
            return NotAllowed(
                f"the message has {size} bytes, more than the {self.message_bytes_max} of maxMessageSize; "
                "send it in chunks or make it smaller"
            )
        self.messages_in += send.num_messages
        self.bytes_in += size
        self.pending += 1
        return None

    def untake(self) -> None:
        """Undo the last `take`: the topic has refused the entry."""
        # The counters of messages and bytes stay: they say what the client has sent.
        self.pending -= 1

    def confirm(self, receipts: list[bytes]) -> None:
        """Entries are durable: write their receipts, made by `encode_receipt`, the oldest entry first."""
        # A list and not one receipt: a sync confirms a burst, and the outbox took as long for each receipt as
        # the encoder did.
        if not self.given_up:
            self.outbox.write(receipts)
        self.pending -= len(receipts)
        if self.pending == 0 and self._on_idle is not None:
            self._on_idle()

    def fail(self, sequence_id: int, error: GemingaError) -> None:
        """The entry will not become durable: answer SEND_ERROR."""
        if not self.given_up:
            self.refuse(sequence_id, error)
        self.pending -= 1
        if self.pending == 0 and self._on_idle is not None:
            self._on_idle()

    def give_up(self, sequence_id: int, error: GemingaError) -> None:
        """Fail this entry, the oldest pending one, which takes too long. No receipt follows for it or for
        any later entry.
        """
        # Clients reconnect on this error and send all of them again. Receipts of the first attempt must not
        # settle messages of the second.
        self.refuse(sequence_id, error)
        self.given_up = True

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
        """Answer SEND_ERROR. An entry of a terminated topic gets no answer, because its producer is closed
        next.
        """
        # After CLOSE_PRODUCER every client asks for its producer again, is refused with TopicTerminated, and
        # fails all pending sends with that. On SEND_ERROR with TopicTerminated, Go's client forgets the
        # producer without failing them, so that they time out, on a Pulsar broker too.
        log.debug("%s: message %d of producer %r refused: %s", self.address, sequence_id, self.name, error)
        if isinstance(error, TopicTerminated):
            return
        self.outbox.write(encoder.send_error(self.producer_id, sequence_id, error.server_error, str(error)))
