"""Single messages as `topics peek-messages` and the like print them, in pulsar-admin's form."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from geminga.cli.admin.admin_http import Admin, Answer, RequestFailed
from geminga.cli.client.message import in_batch
from geminga.cli.payloads.errors import CannotDecode
from geminga.cli.verbs.rows.verb import Flags, path_of
from geminga.units import time_ms

BETWEEN = "-" * 73
"""Between two messages."""
ROW_BYTES = 16
TIMES = (
    ("publish-time", "Publish time"),
    ("event-time", "Event time"),
    ("deliver-at-time", "Deliver at time"),
    ("Broker-Entry-METADATA-timestamp", "Broker entry metadata timestamp"),
)
ALWAYS_TOLD = ("Publish time", "Event time")
NOTHING_THERE = "404"


class Shown(NamedTuple):
    """A message as the API answers it, and by which line pulsar-admin introduces it."""

    head: str
    place: str
    times_ms: Mapping[str, int]
    """By the names in `TIMES`; what a message does not have is left out, but for the first two."""
    properties: Mapping[str, str]
    payload: bytes

    def lines(self) -> list[str]:
        facts = [f"{text}: {self.times_ms[text]}" for _, text in TIMES if text in self.times_ms]
        if self.properties:
            facts += ["Properties:", *(f"{key}    {value}" for key, value in self.properties.items())]
        return [f"{self.head}: {self.place}", *facts, *hex_dump(self.payload)]

    def mapping(self) -> dict[str, Any]:
        """As `--json` prints it; `geminga peek --json` has the same names."""
        times = {f"{text.lower().replace(' ', '_')}_ms": at_ms for text, at_ms in self.times_ms.items()}
        found = {"id": self.place, **times, "properties": dict(self.properties)}
        try:
            return {**found, "payload": self.payload.decode()}
        except UnicodeDecodeError:
            return {**found, "payload_base64": base64.b64encode(self.payload).decode()}


def peek(admin: Admin, flags: Flags) -> list[Any]:
    """The first messages of a subscription's backlog, fewer where it is shorter."""
    found: list[Shown] = []
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
    found = found[: flags.count]
    if flags.json:
        return [message.mapping() for message in found]
    lines: list[str] = []
    for number, message in enumerate(found):
        lines += [BETWEEN, ""] if number else []
        lines += message.lines()
    return lines


def examine(admin: Admin, flags: Flags) -> Any:
    path = path_of("{topic}/examinemessage", flags)
    answer = admin.fetch("GET", path, initialPosition=flags.start, messagePosition=flags.number)
    return _first(answer, flags)


def by_id(admin: Admin, flags: Flags) -> Any:
    path = path_of("{topic}/ledger/{ledger}/entry/{entry}", flags)
    return _first(admin.fetch("GET", path), flags)


def _first(answer: Answer, flags: Flags) -> Any:
    """The first message of an entry; an empty list if the entry has none."""
    found = next(messages(answer), None)
    if found is None:
        return []
    return found.mapping() if flags.json else found.lines()


def messages(answer: Answer) -> Iterator[Shown]:
    """Each message of an entry, as the API answers it: metadata in headers, payload in the body."""
    headers = answer.headers
    place = headers.get("X-Pulsar-Message-ID", "")
    size = headers.get("X-Pulsar-num-batch-message", "")
    times_ms = _times_ms(headers)
    if not size.isdigit():
        properties = _properties(headers.get("X-Pulsar-PROPERTY", ""))
        yield Shown("Message ID", place, times_ms, properties, answer.content)
        return
    try:
        batch = list(in_batch(answer.content, int(size)))
    except (DecodeError, CannotDecode):
        yield Shown("Message ID", place, times_ms, {}, answer.content)
        return
    for index, (own, payload) in enumerate(batch):
        properties = {pair.key: pair.value for pair in own.properties}
        yield Shown("Batch Message ID", f"{place}:{index}", times_ms, properties, payload)


def _times_ms(headers: Mapping[str, str]) -> dict[str, int]:
    found = {text: _time_ms(headers.get(f"X-Pulsar-{header}", "")) for header, text in TIMES}
    return {text: at_ms for text, at_ms in found.items() if at_ms or text in ALWAYS_TOLD}


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
        return time_ms(text) if text else 0
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
