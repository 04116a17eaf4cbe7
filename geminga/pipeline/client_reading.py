"""Encrypted entries: only the official client (package pulsar-client) reads them, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from geminga.pipeline.batches import Messages
from geminga.pipeline.connection import Access, PipelineError
from geminga.pipeline.entries import NO_BATCH, Entries
from geminga.pipeline.places import Place
from geminga.pipeline.protobuf_columns import PADDING_BYTES, Ints, Repeated, Spans
from geminga.pipeline.reading import Range
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed

_ROWS_MAX = 10_000


def read_by_client(access: Access, wanted: Range, *, poll_timeout_s: float) -> Iterator[Messages]:
    """The messages of the range, decrypted. Raises `PipelineError`."""
    try:
        import pulsar
    except ImportError:
        raise PipelineError(
            f"{wanted.topic} holds encrypted messages: pip install pulsar-client, which can read them"
        ) from None
    if access.private_key is None:
        raise PipelineError(
            f"{wanted.topic} holds encrypted messages: give the options pulsar.reader.privateKeyPath and "
            "pulsar.reader.publicKeyPath (PEM files, on every worker)"
        )
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    authentication = None
    if access.auth_method == "token" and access.auth_data is not None:
        authentication = pulsar.AuthenticationToken(access.auth_data.decode())
    client = pulsar.Client(
        access.service_url,
        logger=logger,
        authentication=authentication,
        tls_trust_certs_file_path=access.trust_certificates,
        tls_allow_insecure_connection=access.allow_insecure,
    )
    try:
        start = wanted.start
        first = pulsar.MessageId.earliest
        if start.ledger_id >= 0:
            first = pulsar.MessageId(-1, start.ledger_id, start.entry_id, -1)
        reader = client.create_reader(
            wanted.topic,
            first,
            start_message_id_inclusive=True,
            crypto_key_reader=pulsar.CryptoKeyReader(access.public_key or "", access.private_key),
        )
        yield from _blocks(reader, wanted, poll_timeout_s)
    except pulsar.PulsarException as error:
        raise PipelineError(
            f"{wanted.topic}: the official client cannot read on ({error}); is the private key the right one?"
        ) from None
    finally:
        client.close()


def _blocks(reader: Any, wanted: Range, poll_timeout_s: float) -> Iterator[Messages]:
    found: list[tuple[Any, pb.MessageIdData]] = []
    while True:
        message = reader.read_next(int(poll_timeout_s * 1000))
        message_id = pb.MessageIdData.FromString(message.message_id().serialize())
        place = Place(signed(message_id.ledgerId), signed(message_id.entryId), max(message_id.batch_index, 0))
        if place >= wanted.end:
            break
        if place >= wanted.start:
            found.append((message, message_id))
        is_last = place.batch_index >= message_id.batch_size - 1
        if is_last and Place(place.ledger_id, place.entry_id + 1, 0) >= wanted.end:
            break
        if len(found) == _ROWS_MAX:
            yield _messages(found)
            found = []
    if found:
        yield _messages(found)


class _Bytes:
    """Collects parts of one buffer and where they are."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.end = 0

    def add(self, data: bytes) -> tuple[int, int]:
        self._parts.append(data)
        at, self.end = self.end, self.end + len(data)
        return at, len(data)

    def array(self) -> Any:
        return np.frombuffer(b"".join([*self._parts, bytes(PADDING_BYTES)]), np.uint8)


def _messages(found: list[tuple[Any, pb.MessageIdData]]) -> Messages:
    """As if each message had been alone in its entry, but for its batch index."""
    count = len(found)
    buffer = _Bytes()
    payload = [buffer.add(message.data()) for message, _ in found]
    keys = [buffer.add(message.partition_key().encode()) for message, _ in found]
    pairs = [
        (row, *buffer.add(pb.KeyValue(key=key, value=value).SerializeToString()))
        for row, (message, _) in enumerate(found)
        for key, value in message.properties().items()
    ]
    data = buffer.array()
    payload_at, payload_bytes = _columns(payload)
    key_at, key_bytes = _columns(keys)
    pair_row, pair_at, pair_bytes = _columns(pairs, 3)
    ids = [message_id for _, message_id in found]
    no, zero, nothing = np.zeros(count, bool), np.zeros(count, np.int64), np.full(count, -1, np.int64)
    absent = Spans(nothing, zero)
    entries = Entries(
        data=data,
        ledger_id=np.array([signed(each.ledgerId) for each in ids], np.int64),
        entry_id=np.array([signed(each.entryId) for each in ids], np.int64),
        partition=np.array([each.partition for each in ids], np.int64),
        redelivery_count=zero,
        broker_time_ms=nothing,
        publish_time_ms=np.array([message.publish_timestamp() for message, _ in found], np.int64),
        event_time_ms=zero,
        deliver_at_ms=nothing,
        compression=zero,
        uncompressed_bytes=zero,
        batch_messages=np.array([each.batch_size or NO_BATCH for each in ids], np.int64),
        encrypted=no,
        marker=no,
        null_value=no,
        key_base64=no,
        sequence_id=nothing,
        chunk_id=nothing,
        chunks=zero,
        producer=absent,
        key=absent,
        ordering_key=absent,
        schema_version=absent,
        uuid=absent,
        properties=Repeated(zero[:0], zero[:0], zero[:0]),
        payload_at=payload_at,
        payload_end=payload_at + payload_bytes,
    )
    return Messages(
        data=data,
        entries=entries,
        entry=np.arange(count),
        batch_index=np.array([each.batch_index for each in ids], np.int64),
        payload_at=payload_at,
        payload_bytes=payload_bytes,
        key=Spans(np.where(key_bytes > 0, key_at, -1), key_bytes),
        key_base64=no,
        ordering_key=absent,
        event_time_ms=np.array([message.event_timestamp() for message, _ in found], np.int64),
        sequence_id=nothing,
        null_value=no,
        properties=Repeated(pair_row, pair_at, pair_bytes),
    )


def _columns(rows: list[Any], width: int = 2) -> list[Ints]:
    return list(np.array(rows, np.int64).reshape(-1, width).T.copy())
