"""Single messages as `topics peek-messages` and the like print them, in pulsar-admin's form."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from geminga.cli.admin.admin_http import Admin, Answer, RequestFailed
from geminga.cli.client.message import in_batch
from geminga.cli.payloads.errors import CannotDecode
from geminga.cli.verbs.rows.verb import Flags, path_of

BETWEEN = "-" * 73
"""Between two messages."""
ROW_BYTES = 16
TIMES = (
    ("publish-time", "Publish time"),
    ("event-time", "Event time"),
    ("deliver-at-time", "Deliver at time"),
    ("Broker-Entry-METADATA-timestamp", "Broker entry metadata timestamp"),
)
NOTHING_THERE = "404"


def peek(admin: Admin, flags: Flags) -> list[str]:
    """The first messages of a subscription's backlog, fewer where it is shorter."""
    found: list[list[str]] = []
    entry = 1
    while len(found) < flags.count:
        path = path_of("{topic}/subscription/{subscription}/position/", flags)
        try:
            answer = admin.fetch("GET", f"{path}{entry}")
        except RequestFailed as error:
            if found and error.status.startswith(NOTHING_THERE):
                break
            if entry == 1 and str(error) == "Message not found":
                return []
            raise
        found += messages(answer)
        entry += 1
    lines: list[str] = []
    for number, message in enumerate(found[: flags.count]):
        lines += [BETWEEN, ""] if number else []
        lines += message
    return lines


def examine(admin: Admin, flags: Flags) -> list[str]:
    path = path_of("{topic}/examinemessage", flags)
    answer = admin.fetch("GET", path, initialPosition=flags.start, messagePosition=flags.number)
    return next(messages(answer), [])


def by_id(admin: Admin, flags: Flags) -> list[str]:
    path = path_of("{topic}/ledger/{ledger}/entry/{entry}", flags)
    return next(messages(admin.fetch("GET", path)), [])


def messages(answer: Answer) -> Iterator[list[str]]:
    """Lines of each message of an entry, as the API answers it: metadata in headers, payload in the body."""
    headers = answer.headers
    place = headers.get("X-Pulsar-Message-ID", "")
    size = headers.get("X-Pulsar-num-batch-message", "")
    if not size.isdigit():
        properties = _properties(headers.get("X-Pulsar-PROPERTY", ""))
        yield [f"Message ID: {place}", *_facts(headers, properties), *hex_dump(answer.content)]
        return
    try:
        batch = list(in_batch(answer.content, int(size)))
    except (DecodeError, CannotDecode):
        yield [f"Message ID: {place}", *_facts(headers, {}), *hex_dump(answer.content)]
        return
    for index, (own, payload) in enumerate(batch):
        properties = {pair.key: pair.value for pair in own.properties}
        yield [f"Batch Message ID: {place}:{index}", *_facts(headers, properties), *hex_dump(payload)]


def _facts(headers: Mapping[str, str], properties: Mapping[str, str]) -> list[str]:
    lines = []
    for header, text in TIMES:
        time_ms = _time_ms(headers.get(f"X-Pulsar-{header}", ""))
        if time_ms or header in ("publish-time", "event-time"):
            lines.append(f"{text}: {time_ms}")
    if properties:
        lines += ["Properties:", *(f"{key}    {value}" for key, value in properties.items())]
    return lines


def _properties(text: str) -> dict[str, str]:
    """As the header has them."""
    try:
        found: Any = json.loads(text) if text else {}
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _time_ms(text: str) -> int:
    """Milliseconds since 1970; 0: there is no time, or none that is understood."""
    try:
        return round(datetime.datetime.fromisoformat(text).timestamp() * 1000) if text else 0
    except ValueError:
        return 0


def hex_dump(data: bytes) -> list[str]:
    """Bytes in rows of sixteen, with their characters, in the frame that pulsar-admin draws."""
    if not data:
        return [""]
    heads = " ".join(f"{digit:2x}" for digit in range(ROW_BYTES))
    inner, side = "-" * (3 * ROW_BYTES + 1), " " * 9
    edge = f"+--------+{inner}+{'-' * ROW_BYTES}+"
    lines = [f"{side}+{inner}+", f"{side}| {heads} |", edge]
    for at in range(0, len(data), ROW_BYTES):
        row = data[at : at + ROW_BYTES]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"|{at:08x}| {row.hex(' '):{3 * ROW_BYTES - 1}} |{shown:{ROW_BYTES}}|")
    return [*lines, edge]
