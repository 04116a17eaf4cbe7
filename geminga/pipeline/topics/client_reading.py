"""Encrypted entries. Only the official client (package pulsar-client) decrypts them, message by message.
Their metadata is not encrypted and comes from this package's reader.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geminga.pipeline.columns.batches import Messages
from geminga.pipeline.columns.entries import NO_BATCH, Entries
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.columns.protobuf_columns import PADDING_BYTES, Ints, Repeated, Spans
from geminga.pipeline.errors import Access, PipelineError
from geminga.pipeline.topics.admission import messages_of
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed

_Found = tuple[Any, pb.MessageIdData]


class DecryptingReader:
    """Reads a topic beside this package's reader, and returns the messages for each buffer of entries. Close
    it.
    """

    def __init__(self, access: Access, topic: str, start: MessageId, *, poll_timeout_s: float) -> None:
        """Begins with the entry of `start`. Raises `PipelineError`."""
        self._topic = topic
        self._poll_timeout_ms = int(poll_timeout_s * 1000)
        self._ahead: _Found | None = None
        self._pulsar = _client_package(topic)
        if access.private_key is None:
            raise PipelineError(
                f"{topic} holds encrypted messages: give the options pulsar.reader.privateKeyPath and "
                "pulsar.reader.publicKeyPath (PEM files, on every worker)"
            )
        self._client = _client(self._pulsar, access)
        first = self._pulsar.MessageId.earliest
        if start > EARLIEST:
            first = self._pulsar.MessageId(-1, start.ledger_id, start.entry_id, -1)
        keys = self._pulsar.CryptoKeyReader(access.public_key or "", access.private_key)
        try:
            self._reader = self._client.create_reader(
                topic,
                first,
                start_message_id_inclusive=True,
                crypto_key_reader=keys,
                subscription_role_prefix=access.reader_name,
            )
        except self._pulsar.PulsarException as error:
            self.close()
            raise PipelineError(f"{topic}: the official client cannot read it ({error})") from None

    def close(self) -> None:
        self._client.close()

    def messages(self, entries: Entries) -> Messages:
        """The messages of all these entries, which follow those of the previous call. Raises
        `PipelineError`.
        """
        counts = messages_of(entries)
        rows = {
            (int(entries.ledger_id[row]), int(entries.entry_id[row])): row
            for row in np.flatnonzero(counts > 0).tolist()
        }
        found: list[_Found] = []
        of_row: list[int] = []
        if rows:
            last = max(rows)
            while not found or not _ends(found[-1][1], last):
                message, message_id = self._next()
                entry = signed(message_id.ledgerId), signed(message_id.entryId)
                if entry > last:
                    self._ahead = message, message_id
                    break
                if entry in rows:
                    found.append((message, message_id))
                    of_row.append(rows[entry])
        return _messages(found, np.array(of_row, np.int64), entries)

    def _next(self) -> _Found:
        if self._ahead is not None:
            found, self._ahead = self._ahead, None
            return found
        try:
            message = self._reader.read_next(self._poll_timeout_ms)
        except self._pulsar.PulsarException as error:
            raise PipelineError(
                f"{self._topic}: the official client cannot read on ({error}); is the private key the "
                "right one?"
            ) from None
        return message, pb.MessageIdData.FromString(message.message_id().serialize())


def _ends(message_id: pb.MessageIdData, last: tuple[int, int]) -> bool:
    """Whether this is the last message of the entry at `last`."""
    is_there = (signed(message_id.ledgerId), signed(message_id.entryId)) == last
    return is_there and max(message_id.batch_index, 0) >= message_id.batch_size - 1


def _client_package(topic: str) -> Any:
    try:
        import pulsar
    except ImportError:
        raise PipelineError(
            f"{topic} holds encrypted messages: pip install pulsar-client, which can read them"
        ) from None
    return pulsar


def _client(pulsar: Any, access: Access) -> Any:
    authentication = None
    data = (access.auth_data or b"").decode()
    if access.auth_method == "token":
        authentication = pulsar.AuthenticationToken(data)
    elif access.auth_method == "basic":
        user, _, password = data.partition(":")
        authentication = pulsar.AuthenticationBasic(user, password)
    elif access.auth_method == "tls":
        authentication = pulsar.AuthenticationTLS(access.certificate, access.certificate_key)
    return pulsar.Client(
        access.service_url,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        authentication=authentication,
        tls_trust_certs_file_path=access.trust_certificates,
        tls_allow_insecure_connection=access.allow_insecure,
        tls_validate_hostname=access.verify_hostname and not access.allow_insecure,
    )


class _Bytes:
    """Collects values in one buffer, with their offsets."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.end = 0

    def add(self, data: bytes) -> tuple[int, int]:
        self._parts.append(data)
        at, self.end = self.end, self.end + len(data)
        return at, len(data)

    def array(self) -> Any:
        return np.frombuffer(b"".join([*self._parts, bytes(PADDING_BYTES)]), np.uint8)


def _messages(found: list[_Found], of_row: Ints, entries: Entries) -> Messages:
    count = len(found)
    buffer = _Bytes()
    payload = _columns([buffer.add(message.data()) for message, _ in found])
    key = _columns([buffer.add(message.partition_key().encode()) for message, _ in found])
    ordering = _columns([buffer.add(message.ordering_key().encode()) for message, _ in found])
    pairs = [
        (row, *buffer.add(pb.KeyValue(key=key, value=value).SerializeToString()))
        for row, (message, _) in enumerate(found)
        for key, value in message.properties().items()
    ]
    pair_row, pair_at, pair_bytes = _columns(pairs, 3)
    index = [message_id.batch_index if message_id.batch_index >= 0 else NO_BATCH for _, message_id in found]
    return Messages(
        data=buffer.array(),
        entries=entries,
        entry=of_row,
        batch_index=np.array(index, np.int64),
        payload_at=payload[0],
        payload_bytes=payload[1],
        key=_present(*key),
        key_base64=entries.key_base64[of_row] if count else np.zeros(0, bool),
        ordering_key=_present(*ordering),
        event_time_ms=np.array([message.event_timestamp() for message, _ in found], np.int64),
        sequence_id=np.full(count, -1, np.int64),
        null_value=np.array([message.has_null_value() for message, _ in found], bool),
        properties=Repeated(pair_row, pair_at, pair_bytes),
    )


def _present(at: Ints, size: Ints) -> Spans:
    """Whether a value is present; the client does not distinguish an empty value from a missing one."""
    return Spans(np.where(size > 0, at, -1), size)


def _columns(rows: list[Any], width: int = 2) -> list[Ints]:
    return list(np.array(rows, np.int64).reshape(-1, width).T.copy())
