"""Producers on blocking connections: many entries under way, each confirmed by its receipt."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from geminga.clock import RealClock
from geminga.errors import ServerError
from geminga.limits import MIB
from geminga.pipeline.client.producer_connections import ProducerConnection, ProducerConnections
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed

Result = TypeVar("Result")
_CLOCK = RealClock()
_PAUSE_SECONDS = 0.2
BUSY_SECONDS = 120.0
"""How long to wait for a name that another connection has: an attempt of the same task that Spark runs beside
this one (speculation), or one whose machine died, which the broker notices within a minute.
"""
_SAME_NAME = (
    "; another writer has had this name all the time: give each query and job that runs at the same time its "
    "own (producerNamePrefix)"
)
_TRY_AGAIN = (ServerError.PRODUCER_BUSY, ServerError.SERVICE_NOT_READY, ServerError.PRODUCER_FENCED)
PENDING_BYTES_MAX = 32 * MIB
"""Of a producer that shares no bound with others."""
_ENTRY_BYTES_MIN = 1024
"""An entry counts as so much at least. That bounds the receipts that wait in a connection too: a broker may
take no more entries while it cannot write receipts.
"""


class NotSent(PipelineError):
    """Rows that the broker did not confirm in time."""


def while_away(seconds: float, act: Callable[[], Result], told: Callable[[], str]) -> Result:
    """Do it, again while no broker answers, for so long. Raises `NotSent`, with what `told` says."""
    until = _CLOCK.monotonic_s() + seconds
    while True:
        try:
            return act()
        except BrokerUnreachable as error:
            if _CLOCK.monotonic_s() > until:
                raise NotSent(
                    f"{told()}: the broker was away for {seconds:.0f} s (sendTimeoutMs): ", error
                ) from None
            threading.Event().wait(_PAUSE_SECONDS)


class PendingBytes:
    """What several producers have sent and the broker has not confirmed, bounded together: they keep it to
    send it again after a lost connection.
    """

    def __init__(self, max_bytes: int = PENDING_BYTES_MAX) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._of: dict[Producer, int] = {}

    def make_room(self, size_bytes: int) -> None:
        """Wait for receipts until so much fits; what is larger than all goes alone. Raises `NotSent`,
        `Refused`.
        """
        while self._bytes and self._bytes + size_bytes > self._max_bytes:
            most = max(self._of, key=self._of.__getitem__)
            most.await_receipts(self._of[most] // 2)

    def add(self, producer: Producer, size_bytes: int) -> None:
        """Negative when it is confirmed."""
        self._bytes += size_bytes
        self._of[producer] = self._of.get(producer, 0) + size_bytes

    def of(self, producer: Producer) -> int:
        return self._of.get(producer, 0)

    def leave_out(self, producer: Producer) -> None:
        """It is closed: what it has pending is given up."""
        self._bytes -= self._of.pop(producer, 0)


class _Sent(NamedTuple):
    """An entry without a receipt."""

    sequence_id: int
    last_sequence_id: int
    digest: int | None
    """What `stored_digest` tells of it once it is stored."""
    frame: bytes


class Producer:
    """Sends entries to one topic (a single partition), in order. After a lost connection it goes on with what
    was not confirmed: an entry may then be stored twice, unless the broker deduplicates.
    """

    def __init__(
        self,
        access: Access,
        topic: str,
        name: str | None,
        *,
        connections: ProducerConnections | None = None,
        pending_max: int,
        send_timeout_s: float,
        schema: pb.Schema | None = None,
        pending_bytes: PendingBytes | None = None,
        stored_digest: Callable[[int], int | None] | None = None,
    ) -> None:
        """`name` None: the broker chooses one. `connections`: shared with other producers; None: its own,
        where its id is 1. `schema` is registered. `pending_max` entries may be without a
        receipt, and `pending_bytes`, of which other producers may have a part. `stored_digest` is given where
        the broker deduplicates and nothing may be stored under the name meanwhile but what this producer has
        sent: of the entry whose last sequence id the broker knows, None if that is not to be compared.
        Raises `PipelineError`.
        """
        self.topic = topic
        self.name = name
        self.last_sequence_id = -1
        """The last that the broker knows of this producer, when it was opened; -1: none."""
        self.deduplicated = 0
        """Entries that the broker confirmed without storing them: it takes them for repetitions."""
        self._schema = schema
        self._schema_version = b""
        self._connections = ProducerConnections(access) if connections is None else connections
        self.producer_id = self._connections.new_producer_id()
        """Which its frames name."""
        self._is_closed = False
        """By the broker."""
        self._pending_max = pending_max
        self._send_timeout_s = send_timeout_s
        self._pending: deque[_Sent] = deque()
        self._stored_digest = stored_digest
        self._confirmed_id: int | None = None
        """The last sequence id of what the broker has stored for certain; None: it was never asked."""
        self._pending_bytes = PendingBytes() if pending_bytes is None else pending_bytes
        self._connection = self._persistently(self._open)
        self._confirmed_id = self.last_sequence_id

    @property
    def message_bytes_max(self) -> int:
        return self._connection.message_bytes_max

    def name_schema(self, metadata: pb.MessageMetadata) -> None:
        """Put in which version of the topic's schema the message is."""
        if self._schema_version:
            metadata.schema_version = self._schema_version

    def send(
        self, sequence_id: int, frame: bytes, last_sequence_id: int | None = None, digest: int | None = None
    ) -> None:
        """An entry with the sequence id of its first row, and that of its last, if it has several. Waits for
        room; confirmed is what `flush` has seen. Raises `NotSent`, `Refused`, `PipelineError`.
        """
        self._pending_bytes.make_room(_counted(frame))
        last = sequence_id if last_sequence_id is None else last_sequence_id
        self._pending.append(_Sent(sequence_id, last, digest, frame))
        self._pending_bytes.add(self, _counted(frame))
        self._with_retries(lambda: self._open_connection().write(frame))
        if len(self._pending) >= self._pending_max:
            self._wait(lambda: len(self._pending) <= self._pending_max // 2)

    def await_receipts(self, bytes_max: int) -> None:
        """Return once no more than so much is without a receipt. Raises `NotSent`, `Refused`."""
        self._wait(lambda: self._pending_bytes.of(self) <= bytes_max)

    def flush(self) -> None:
        """Return once everything is durable. Raises `NotSent`, `Refused`."""
        self._wait(lambda: not self._pending)

    def idle(self, seconds: float) -> None:
        """Send nothing for so long, but answer the broker and take receipts. Raises `NotSent`, `Refused`."""
        until = _CLOCK.monotonic_s() + seconds
        while (left := until - _CLOCK.monotonic_s()) > 0:
            self._with_retries(partial(self._take_receipts, min(left, 1.0)))

    def known_sequence_id(self) -> int:
        """What the broker says now about the last sequence id of this producer; -1: it keeps none."""
        self._connection.request(self._closing)
        return int(self._register(self._connection).last_sequence_id)

    def close(self) -> None:
        try:
            if not self._pending and not self._is_closed:
                self._connection.request(self._closing)
        except PipelineError:
            pass  # it ends with its connection anyway
        finally:
            self._pending_bytes.leave_out(self)
            self._connection.leave(self.producer_id)

    def hear(self, command: Any) -> None:
        """What the broker says of this producer. Raises `Refused`."""
        if isinstance(command, pb.CommandSendReceipt):
            if self._pending and self._pending[0].sequence_id == command.sequence_id:
                confirmed = self._pending.popleft()
                self._confirmed_id = confirmed.last_sequence_id
                self._pending_bytes.add(self, -_counted(confirmed.frame))
                self.deduplicated += signed(command.message_id.ledgerId) < 0
        elif isinstance(command, pb.CommandSendError):
            raise Refused(command.error, f"{self.topic}: {command.message}")
        elif isinstance(command, pb.CommandCloseProducer):
            self._is_closed = True

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        until = _CLOCK.monotonic_s() + self._send_timeout_s
        while not is_enough():
            before = len(self._pending)
            self._with_retries(self._take_receipts)
            if len(self._pending) < before:
                until = _CLOCK.monotonic_s() + self._send_timeout_s
            elif _CLOCK.monotonic_s() > until:
                raise NotSent(
                    f"{self.topic}: {len(self._pending)} batches were not confirmed within "
                    f"{self._send_timeout_s:.0f} s (sendTimeoutMs)"
                )

    def _take_receipts(self, timeout_s: float = 1.0) -> None:
        """Those of all producers of the connection."""
        self._open_connection().hear(timeout_s)

    def _open_connection(self) -> ProducerConnection:
        if self._is_closed:
            raise BrokerUnreachable(f"{self.topic}: the broker closed the producer")
        return self._connection

    def _with_retries(self, act: Callable[[], None]) -> None:
        """Do it; if the broker is away, wait for it and send again what was not confirmed."""
        try:
            act()
        except BrokerUnreachable:
            self._connection.leave(self.producer_id)
            self._persistently(self._go_on)

    def _go_on(self) -> None:
        self._connection = self._open()
        for sent in self._pending:
            self._connection.write(sent.frame)

    def _persistently(self, act: Callable[[], Result]) -> Result:
        """Wait for a broker that is away. Raises `NotSent`."""
        return while_away(
            self._send_timeout_s, act, lambda: f"{self.topic}: {len(self._pending)} batches are not confirmed"
        )

    def _open(self) -> ProducerConnection:
        """Look the topic up and register; waits while another of the same name is still connected."""
        begun = _CLOCK.monotonic_s()
        while True:
            connection = self._connections.to_owner_of(self.topic)
            try:
                answer = self._register(connection)
            except Refused as error:
                connection.close_unused()
                if error.code == ServerError.INCOMPATIBLE_SCHEMA:
                    raise PipelineError(
                        f"{self.topic}: its schema does not allow these values ({error.text}); change the "
                        "columns, or set valueSchema=none to write a column 'value' as bytes"
                    ) from None
                is_busy = error.code == ServerError.PRODUCER_BUSY
                patience_s = max(self._send_timeout_s, BUSY_SECONDS * is_busy)
                if error.code not in _TRY_AGAIN or _CLOCK.monotonic_s() > begun + patience_s:
                    hint = _SAME_NAME if is_busy else ""
                    raise PipelineError(f"{self.topic}: cannot write: {error}{hint}") from None
                threading.Event().wait(_PAUSE_SECONDS)
                continue
            except BaseException:
                connection.close_unused()
                raise
            connection.join(self.producer_id, self.hear)
            try:
                self._check_alone(answer.last_sequence_id)
            except BaseException:
                connection.leave(self.producer_id)
                raise
            self._is_closed = False
            self.name = answer.producer_name
            self.last_sequence_id = answer.last_sequence_id
            self._schema_version = answer.schema_version if self._schema is not None else b""
            return connection

    def _check_alone(self, known_id: int) -> None:
        """Brokers take a batch for a repetition by its first row alone, and what follows on rows of another
        writer would hide that ours were dropped. Raises `PipelineError`.
        """
        if self._stored_digest is None or self._confirmed_id in (None, known_id):
            return
        for sent in self._pending:
            if sent.last_sequence_id == known_id and self._stored_digest(known_id) in (None, sent.digest):
                return
        raise PipelineError(
            f"{self.topic}: when its connection was lost {self.name} had receipts up to sequence id "
            f"{self._confirmed_id}, and now the broker knows of {known_id}: another writer had the name "
            "meanwhile, or the broker has forgotten it. Nothing more was written. If that was another "
            "attempt at the same task, the next one compares what is stored; if it was another job or query, "
            "give each a producerNamePrefix of its own"
        )

    def _closing(self, request_id: int) -> bytes:
        return client_commands.close_producer(request_id, self.producer_id)

    def _register(self, connection: ProducerConnection) -> pb.CommandProducerSuccess:
        answer = connection.request(
            lambda number: client_commands.producer(
                number, self.producer_id, self.topic, self.name, schema=self._schema
            )
        )
        assert isinstance(answer, pb.CommandProducerSuccess)
        return answer


def _counted(frame: bytes) -> int:
    return max(len(frame), _ENTRY_BYTES_MIN)
