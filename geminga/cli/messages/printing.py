"""Messages on standard output: payloads, as pulsar-client prints them, or as JSON."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from geminga.cli.messages.values import Decoded
from geminga.cli.payloads import java_text
from geminga.cli.payloads.schemas import KeyValue
from geminga.cli.show import text
from geminga.units import time_text

FORMATS = ("plain", "pulsar", "json")
BOUNDARY = "----- got message -----"
HIDDEN_EVERY = 1000
"""Messages without content are counted aloud so often."""


class Printer:
    """Writes messages to standard output, to a terminal without their control characters."""

    def __init__(
        self, style: str, *, is_hex: bool = False, is_hidden: bool = False, with_metadata: bool = False
    ) -> None:
        self.printed = 0
        self._style = style
        self._is_hex = is_hex
        self._is_hidden = is_hidden
        self._with_metadata = with_metadata
        self._terminal = sys.stdout.isatty()

    def print(self, decoded: Decoded) -> None:
        self.printed += 1  # before the write, so that a line on the output is always counted
        if self._is_hidden:
            if self.printed % HIDDEN_EVERY == 0:
                self._write(f"Received {self.printed} messages".encode())
        elif self._style == "json":
            line = json_text(decoded)
            self._write((text.escaped_json(line) if self._terminal else line).encode())
        elif self._style == "pulsar":
            self._write(f"{BOUNDARY}\n".encode() + self._escaped(self._pulsar_line(decoded)))
        else:
            head = f"{metadata_text(decoded)}\n".encode() if self._with_metadata else b""
            self._write(head + self._escaped(content(decoded, is_hex=self._is_hex)))

    def _escaped(self, line: bytes) -> bytes:
        return text.escaped_lines(line.decode(errors="backslashreplace")).encode() if self._terminal else line

    def _write(self, line: bytes) -> None:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def _pulsar_line(self, decoded: Decoded) -> bytes:
        message = decoded.message
        key = message.key if message.has_key else "null"
        head = (
            f"publishTime:[{message.publish_time_ms}], eventTime:[{message.event_time_ms}], key:[{key}], "
            f"properties:{java_text.properties_text(message.properties)}, content:"
        )
        if decoded.value is None:
            shown = b"null"
        elif decoded.schema is not None:
            shown = java_text.value_text(decoded.value, decoded.schema.kind).encode()
        else:
            shown = content(decoded, is_hex=self._is_hex)
        tail = f", {metadata_text(decoded)}" if self._with_metadata else ""
        return head.encode() + shown + tail.encode()


def content(decoded: Decoded, *, is_hex: bool = False) -> bytes:
    """The value as a line, or more if it has more."""
    message = decoded.message
    if message.problem:
        how = f"encrypted for {', '.join(message.encrypted_with)}" if message.encrypted_with else ""
        if not how and message.compression != "NONE":
            how = f"compressed with {message.compression}"
        return f"({len(message.payload)} bytes, {how or message.problem})".encode()
    if is_hex:
        return java_text.hex_dump(message.payload).rstrip("\n").encode()
    return value_line(decoded.value)


def value_line(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(plain(value), ensure_ascii=False).encode()


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes as the text that they are, else as AVRO's JSON writes them."""
    if isinstance(value, KeyValue):
        return {"key": plain(value.key), "value": plain(value.value)}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def metadata_text(decoded: Decoded) -> str:
    """What the message carries, for `--print-metadata`."""
    message = decoded.message
    parts = [
        f"publish-time:{time_text(message.publish_time_ms)}",
        f"event-time:{time_text(message.event_time_ms)}",
        f"message-id:{message.ledger_id}:{message.entry_id}:{message.partition}"
        + (f":{message.batch_index}" if message.batch_index >= 0 else ""),
        f"producer-name:{message.producer_name}",
        f"sequence-id:{message.sequence_id}",
    ]
    if message.has_key:
        parts.append(f"key:{message.key}")
    if message.ordering_key:
        parts.append(f"ordering-key:{message.ordering_key.decode(errors='backslashreplace')}")
    if message.properties:
        parts.append(f"properties:{java_text.properties_text(message.properties)}")
    if message.deliver_at_ms:
        parts.append(f"deliver-at:{time_text(message.deliver_at_ms)}")
    if message.redelivery_count:
        parts.append(f"redelivery-count:{message.redelivery_count}")
    if decoded.schema_version is not None:
        parts.append(f"schema-version:{decoded.schema_version}")
    return text.escaped(", ".join(parts))


_ABSENT: dict[str, Any] = {
    "batch_index": -1,
    "partition": -1,
    "key": "",
    "properties": {},
    "deliver_at_ms": 0,
    "event_time_ms": 0,
    "is_key_base64": False,
    "is_null": False,
    "problem": "",
    "batch_size": 1,
}
_ELSEWHERE = ("payload", "ordering_key", "schema_version", "encrypted_with", "positions", "compression")


def as_mapping(decoded: Decoded) -> dict[str, Any]:
    """All that is known of a message, as `--json` prints it; what a message does not have is left out."""
    message = decoded.message
    shown: dict[str, Any] = {"id": message.id} | {
        name: value
        for name, value in message._asdict().items()
        if name not in _ELSEWHERE and not (name in _ABSENT and value == _ABSENT[name])
    }
    if message.ordering_key:
        shown["ordering_key"] = message.ordering_key.decode(errors="backslashreplace")
    if message.encrypted_with:
        shown["encrypted_with"] = list(message.encrypted_with)
    if message.compression != "NONE":
        shown["compression"] = message.compression
    if decoded.problem and "problem" not in shown:
        shown["problem"] = decoded.problem
    if decoded.schema is not None:
        shown["schema"] = {"type": decoded.schema.name.upper(), "version": decoded.schema_version}
        shown["value"] = plain(decoded.value)
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    return shown


def json_text(decoded: Decoded) -> str:
    return json.dumps(as_mapping(decoded), ensure_ascii=False)
