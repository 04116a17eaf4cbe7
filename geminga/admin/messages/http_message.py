"""Pulsar's headers for a stored entry, and the payload without metadata. Pure, up to the inflating.

header values := ISO 8859-1 as Java's servers send and its clients read them; a line break becomes a space,
what is not in ISO 8859-1 a question mark. `X-Pulsar-PROPERTY` is a JSON object, in ASCII.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any, Final, NamedTuple

from geminga.admin.messages.inflate import inflated
from geminga.admin.statistics.stats_json import instant_text
from geminga.errors import ProtocolError
from geminga.limits import KIB
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed
from geminga.wire.stored_entry import metadata_range, parse_metadata, stamp_bytes

HEADER_BYTES_MAX: Final = 48 * KIB
"""Of all headers together; Java's HTTP clients take less."""
YEAR_MAX: Final = 9999
"""Later years have a sign."""
CALENDAR_CYCLE_MS: Final = 146_097 * 86_400_000
"""400 years: after them the days of the calendar come again."""
METADATA_BYTES_MAX: Final = 256 * KIB
"""Larger ones would fit into no header, and take long to read."""
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class HttpMessage(NamedTuple):
    """A stored entry as a client gets it, its payload not yet inflated."""

    headers: tuple[tuple[str, str], ...]
    stored: bytes
    compression: int
    size_bytes: int
    """Of the payload once inflated, as its producer says."""

    async def payload(self) -> bytes | bytearray:
        """Inflated. Raises `BadPayload`, `NoDecoder`."""
        return await inflated(self.compression, self.stored, self.size_bytes)


def http_message(position: Position, body: bytes) -> HttpMessage:
    """A stored entry as a client gets it."""
    try:
        at, end = metadata_range(body)
        if end - at > METADATA_BYTES_MAX:
            raise ProtocolError(f"{end - at} bytes of metadata are too many for headers")
        metadata = parse_metadata(body, at, end)
        headers = _headers(position, body, metadata)
    except ProtocolError as error:
        # Its bytes are all there is to show.
        found = ("X-Pulsar-Message-ID", str(position)), _warning(str(error))
        return HttpMessage(found, body, pb.NONE, len(body))
    payload = body[end:]
    if metadata.encryption_keys or metadata.compression == pb.NONE:
        return HttpMessage(_fitting(headers), payload, pb.NONE, len(payload))
    return HttpMessage(_fitting(headers), payload, metadata.compression, metadata.uncompressed_size)


def _headers(position: Position, body: bytes, metadata: pb.MessageMetadata) -> list[tuple[str, str]]:
    """In the order of the real broker."""
    found = [("X-Pulsar-Message-ID", str(position)), ("X-Pulsar-PROPERTY", _properties(metadata))]
    found += _stamp(body)

    def add(name: str, field: Any, value: object) -> None:
        if metadata.HasField(field):
            found.append((f"X-Pulsar-{name}", _text(value)))

    add("publish-time", "publish_time", _time(signed(metadata.publish_time)))
    add("event-time", "event_time", _time(signed(metadata.event_time)))
    add("deliver-at-time", "deliver_at_time", _time(metadata.deliver_at_time))
    add("num-batch-message", "num_messages_in_batch", metadata.num_messages_in_batch)
    # The real one counts from the metadata's size field on, without the metadata.
    size_bytes = len(body) - stamp_bytes(body) - metadata.ByteSize()
    add("batch-size", "num_messages_in_batch", size_bytes)
    add("null-value", "null_value", metadata.null_value)
    add("PROPERTY-TOTAL-CHUNKS", "num_chunks_from_msg", metadata.num_chunks_from_msg)
    add("PROPERTY-CHUNK-ID", "num_chunks_from_msg", metadata.chunk_id)
    found.append(("X-Pulsar-Is-Encrypted", _text(bool(metadata.encryption_keys))))
    add("producer-name", "producer_name", metadata.producer_name)
    add("sequence-id", "sequence_id", signed(metadata.sequence_id))
    add("replicated-from", "replicated_from", metadata.replicated_from)
    found += [("X-Pulsar-replicated-to", _text(cluster)) for cluster in metadata.replicate_to]
    add("partition-key", "partition_key", metadata.partition_key)
    add("compression", "compression", _compression(metadata.compression))
    add("uncompressed-size", "uncompressed_size", metadata.uncompressed_size)
    add("encryption-algo", "encryption_algo", metadata.encryption_algo)
    for key in metadata.encryption_keys:
        found.append(("X-Pulsar-Base64-encryption-keys", _encoded(key.SerializeToString())))
    add("Base64-encryption-param", "encryption_param", _encoded(metadata.encryption_param))
    add("Base64-schema-version", "schema_version", _encoded(metadata.schema_version))
    add("partition-key-b64-encoded", "partition_key_b64_encoded", metadata.partition_key_b64_encoded)
    add("Base64-ordering-key", "ordering_key", _encoded(metadata.ordering_key))
    add("marker-type", "marker_type", metadata.marker_type)
    add("txnid-least-bits", "txnid_least_bits", signed(metadata.txnid_least_bits))
    add("txnid-most-bits", "txnid_most_bits", signed(metadata.txnid_most_bits))
    add("highest-sequence-id", "highest_sequence_id", signed(metadata.highest_sequence_id))
    add("uuid", "uuid", metadata.uuid)
    add("num-chunks-from-msg", "num_chunks_from_msg", metadata.num_chunks_from_msg)
    add("total-chunk-msg-size", "total_chunk_msg_size", metadata.total_chunk_msg_size)
    add("chunk-id", "chunk_id", metadata.chunk_id)
    add("null-partition-key", "null_partition_key", metadata.null_partition_key)
    found.append(("X-Pulsar-txn-uncommitted", "false"))
    return found


def _stamp(body: bytes) -> list[tuple[str, str]]:
    """What the broker has put before the entry."""
    end = stamp_bytes(body)
    if not end:
        return []
    stamp = pb.BrokerEntryMetadata.FromString(body[6:end])
    found = []
    if stamp.HasField("broker_timestamp"):
        text = _time(signed(stamp.broker_timestamp))
        found.append(("X-Pulsar-Broker-Entry-METADATA-timestamp", text))
    if stamp.HasField("index"):
        found.append(("X-Pulsar-Broker-Entry-METADATA-index", str(signed(stamp.index))))
    return found


def _properties(metadata: pb.MessageMetadata) -> str:
    """Of those with one name the last counts."""
    found = {_utf8(one.key): _utf8(one.value) for one in metadata.properties}
    return json.dumps(found, separators=(",", ":"))


def _time(time_ms: int) -> str:
    """A producer may send any number; Java's and Python's calendars go to different ends."""
    try:
        return instant_text(time_ms)
    except (OverflowError, ValueError):
        cycles, rest_ms = divmod(time_ms, CALENDAR_CYCLE_MS)
        text = instant_text(rest_ms)
        year = int(text[:4]) + 400 * cycles
        return f"{year:+d}{text[4:]}" if year > YEAR_MAX else f"{year:0{4 + (year < 0)}d}{text[4:]}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = _utf8(value) if isinstance(value, str | bytes) else str(value)
    return _CONTROLS.sub(" ", text.encode("latin-1", "replace").decode("latin-1")).strip(" \t")


def _utf8(text: str | bytes) -> str:
    """protobuf hands out text that is not UTF-8 as bytes."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _encoded(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _compression(number: int) -> str:
    return pb.CompressionType.Name(number) if number in pb.CompressionType.values() else str(number)


def _warning(text: str) -> tuple[str, str]:
    return "Warning", f'299 geminga "{_text(text)}"'


def _fitting(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Without the longest ones if they are too many bytes for HTTP clients; then a `Warning` names them."""

    def size_bytes(header: tuple[str, str]) -> int:
        return len(header[0]) + len(header[1]) + len(": \r\n")

    total_bytes = sum(map(size_bytes, headers))
    if total_bytes <= HEADER_BYTES_MAX:
        return tuple(headers)
    kept = dict(enumerate(headers))
    for place in sorted(kept, key=lambda place: size_bytes(headers[place]), reverse=True):
        total_bytes -= size_bytes(kept.pop(place))
        if total_bytes <= HEADER_BYTES_MAX:
            break
    left_out = dict.fromkeys(name for place, (name, _) in enumerate(headers) if place not in kept)
    return (*kept.values(), _warning(f"too large for a header: {', '.join(left_out)}"))
