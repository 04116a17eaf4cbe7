"""What a real Pulsar answers when it is asked for messages: read, and recorded anew.

    python -m tests.e2e.messages.recorder pulsar://localhost:6650 http://localhost:8080

asks a real Pulsar 4.0.x (CONTRIBUTING.md, "Recording what Pulsar does"). Each case has a topic of its own.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, Answer
from tests.e2e.binary_session import BinarySession
from tests.e2e.differential.play import STACK_TRACE
from tests.e2e.messages.entries import PUBLISHED_MS, entries, publish
from tests.recordings.recording import Recording

RECORDING = Recording(
    Path(__file__).with_name("recording.json"), {"subscriptionBacklogScanMaxEntries": "10000"}
)
ROOT = "/admin/v2/persistent/public/default"
ANSWER_SECONDS_MAX = 5.0
NO_ANSWER = 0
"""The real broker leaves some requests without an answer."""
ACKNOWLEDGED = 2
"""Entries of `sub` that are acknowledged, of each topic that has it."""


HOLES = (0, 3, 5, 6, 7, 14)
"""Entries that `all` has acknowledged in the case of that name."""


class Asked(NamedTuple):
    method: str
    path: str
    """Below the topic. LEDGER and TOPIC stand for what differs from run to run."""
    body: Any
    status: int
    headers: dict[str, str]
    """Those of a message."""
    answer: Any
    """JSON; the text in Base64 of a message."""


def _message(path: str) -> tuple[str, str, Any]:
    return "GET", path, None


def _place(entry_id: int, **more: object) -> dict[str, object]:
    return {"ledgerId": "LEDGER", "entryId": entry_id, "partitionIndex": -1, **more}


MESSAGES = len(entries())
SUB, ALL = "subscription/sub", "subscription/all"
CASES: dict[str, list[tuple[str, str, Any]]] = {
    "peek": [
        *(_message(f"{ALL}/position/{number}") for number in range(1, MESSAGES + 1)),
        *(_message(f"{SUB}/position/{number}") for number in (1, MESSAGES - ACKNOWLEDGED)),
        *(_message(f"{ALL}/position/{text}") for text in ("0", "-1", str(MESSAGES + 1), "99999999999", "x")),
        _message("subscription/none/position/1"),
    ],
    "by id": [
        _message("ledger/LEDGER/entry/0"),
        _message("ledger/LEDGER/entry/4"),
        _message(f"ledger/LEDGER/entry/{MESSAGES}"),
        _message("ledger/LEDGER/entry/-1"),
        _message("ledger/LEDGER/entry/x"),
        _message("ledger/999999/entry/0"),
        _message("ledger/-1/entry/0"),
        _message("ledger/x/entry/0"),
    ],
    "examine": [
        _message("examinemessage"),
        *(
            _message(f"examinemessage?initialPosition={start}&messagePosition={number}")
            for start in ("earliest", "latest", "EARLIEST", "x")
            for number in (1, 2, MESSAGES, MESSAGES + 1, 0, -1)
        ),
        _message("examinemessage?messagePosition=2"),
        _message("examinemessage?messagePosition=x"),
    ],
    "message id by time": [
        _message(f"messageid/{at}")
        for at in (0, PUBLISHED_MS, PUBLISHED_MS + 1, PUBLISHED_MS + 5000, 99999999999999, -1, "x")
    ],
    "last message id": [_message("lastMessageId")],
    "backlog size": [
        *(("PUT", "backlogSize", _place(entry)) for entry in (0, 5, MESSAGES - 1, MESSAGES, 1000, -1)),
        ("PUT", "backlogSize", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}),
        ("PUT", "backlogSize", {"ledgerId": 999999, "entryId": 0, "partitionIndex": -1}),
        ("PUT", "backlogSize", {}),
        ("PUT", "backlogSize", _place(0, batchIndex=1)),
    ],
    "analyze": [
        ("POST", f"{ALL}/analyzeBacklog", None),
        ("POST", f"{SUB}/analyzeBacklog", None),
        ("POST", f"{SUB}/analyzeBacklog", _place(5)),
        ("POST", f"{SUB}/analyzeBacklog", _place(0)),
        ("POST", f"{SUB}/analyzeBacklog", _place(1000)),
        ("POST", "subscription/none/analyzeBacklog", None),
    ],
    "analyze holes": [
        ("POST", f"{ALL}/analyzeBacklog", None),
        ("POST", f"{ALL}/analyzeBacklog", _place(0)),
        ("POST", f"{ALL}/analyzeBacklog", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}),
        *(_message(f"{ALL}/position/{number}") for number in range(1, MESSAGES - len(HOLES) + 2)),
    ],
    "last is a batch": [
        _message("lastMessageId"),
        _message("examinemessage"),
        _message("messageid/99999999999999"),
    ],
    "unloaded": [
        ("PUT", "unload", None),
        _message("lastMessageId"),
        _message("examinemessage"),
        _message(f"{SUB}/position/1"),
        _message("messageid/0"),
        _message(f"messageid/{PUBLISHED_MS + 5000}"),
        ("PUT", "backlogSize", _place(0)),
        ("POST", f"{SUB}/analyzeBacklog", None),
        ("POST", "terminate", None),
        _message("lastMessageId"),
        ("POST", "terminate", None),
    ],
    "subscription properties": [
        ("GET", f"{SUB}/properties", None),
        ("PUT", f"{SUB}/properties", {"a": "1"}),
        ("GET", f"{SUB}/properties", None),
        ("PUT", f"{SUB}/properties", {"b": "2", "c": None}),
        ("PUT", f"{SUB}/properties", {"b": "2", "c": 3}),
        ("GET", f"{SUB}/properties", None),
        ("PUT", f"{SUB}/properties", {}),
        ("GET", f"{SUB}/properties", None),
        ("GET", "subscription/none/properties", None),
        ("PUT", "subscription/none/properties", {"a": "1"}),
    ],
    "properties": [
        ("GET", "properties", None),
        ("PUT", "properties", {"a": "1", "b": "2"}),
        ("GET", "properties", None),
        ("PUT", "properties", {"b": "3", "c": ""}),
        ("GET", "properties", None),
        ("DELETE", "properties?key=a", None),
        ("DELETE", "properties?key=absent", None),
        ("DELETE", "properties", None),
        ("GET", "properties", None),
        ("PUT", "properties", {}),
    ],
    "permissions": [
        ("GET", "permissions", None),
        ("POST", "permissions/role", ["produce", "consume"]),
        ("POST", "permissions/other", ["functions", "sources", "sinks", "packages"]),
        ("GET", "permissions", None),
        ("POST", "permissions/role", ["consume"]),
        ("POST", "permissions/bad", ["nothing"]),
        ("POST", "permissions/empty", []),
        ("GET", "permissions", None),
        ("DELETE", "permissions/role", None),
        ("DELETE", "permissions/role", None),
        ("GET", "permissions", None),
    ],
    "empty": [
        _message("examinemessage"),
        _message(f"{ALL}/position/1"),
        _message("lastMessageId"),
        _message("messageid/0"),
        ("POST", f"{ALL}/analyzeBacklog", None),
        ("GET", "compaction", None),
        ("PUT", "compaction", None),
        ("GET", "offload", None),
        ("POST", "trim", None),
        ("POST", "createMissedPartitions", None),
        ("GET", f"{ALL}/replicatedSubscriptionStatus", None),
        ("POST", f"{ALL}/replicatedSubscriptionStatus", True),
        ("GET", f"{ALL}/replicatedSubscriptionStatus", None),
    ],
    "no such topic": [
        ("GET", "examinemessage", None),
        ("GET", f"{ALL}/position/1", None),
        ("GET", "ledger/0/entry/0", None),
        ("GET", "messageid/0", None),
        ("GET", "lastMessageId", None),
        ("PUT", "backlogSize", {"ledgerId": 0, "entryId": 0}),
        ("POST", f"{ALL}/analyzeBacklog", None),
        ("GET", f"{ALL}/properties", None),
        ("PUT", f"{ALL}/properties", {"a": "1"}),
        ("GET", "properties", None),
        ("PUT", "properties", {"a": "1"}),
        ("DELETE", "properties?key=a", None),
        ("GET", "permissions", None),
        ("POST", "permissions/role", ["produce"]),
        ("DELETE", "permissions/role", None),
        ("GET", "compaction", None),
        ("PUT", "compaction", None),
        ("GET", "offload", None),
        ("PUT", "offload", {"ledgerId": 0, "entryId": 0}),
        ("POST", "trim", None),
        ("POST", "createMissedPartitions", None),
        ("GET", "internal-info", None),
        ("DELETE", "truncate", None),
    ],
    "partitioned": [
        _message("examinemessage"),
        _message(f"{ALL}/position/1"),
        _message("ledger/0/entry/0"),
        _message("lastMessageId"),
        _message("messageid/0"),
        ("PUT", "backlogSize", {"ledgerId": -1, "entryId": -1}),
        ("POST", f"{ALL}/analyzeBacklog", None),
        ("GET", f"{ALL}/properties", None),
        ("PUT", f"{ALL}/properties", {"a": "1"}),
        ("GET", f"{ALL}/properties", None),
        ("GET", "subscription/none/properties", None),
        ("GET", "properties", None),
        ("PUT", "properties", {"a": "1", "b": "2"}),
        ("GET", "properties", None),
        ("DELETE", "properties?key=a", None),
        ("GET", "properties", None),
        ("GET", "permissions", None),
        ("POST", "permissions/role", ["produce"]),
        ("GET", "permissions", None),
        ("DELETE", "permissions/role", None),
        ("GET", "compaction", None),
        ("PUT", "compaction", None),
        ("GET", "offload", None),
        ("PUT", "offload", {"ledgerId": 0, "entryId": 0}),
        ("POST", "trim", None),
        ("POST", "createMissedPartitions", None),
        ("GET", "internal-info", None),
        ("GET", f"{ALL}/replicatedSubscriptionStatus", None),
        ("POST", f"{ALL}/replicatedSubscriptionStatus", True),
        ("GET", f"{ALL}/replicatedSubscriptionStatus", None),
        ("GET", "subscriptions", None),
        ("GET", "stats", None),
        ("GET", "internalStats", None),
    ],
    "one partition": [
        _message("examinemessage"),
        _message(f"{ALL}/position/1"),
        _message("lastMessageId"),
        _message("messageid/0"),
        _message("messageid/99999999999999"),
        ("PUT", "backlogSize", {"ledgerId": -1, "entryId": -1, "partitionIndex": 0}),
        ("GET", "properties", None),
        ("PUT", "properties", {"a": "1"}),
        ("GET", "properties", None),
        ("GET", "permissions", None),
        ("GET", "compaction", None),
    ],
}
MESSAGE_ID = "x-pulsar-message-id"
HEADER_PREFIX, STAMP = "x-pulsar-", "x-pulsar-broker-entry-metadata-timestamp"


class Player:
    """Makes the topic of a case, and asks."""

    def __init__(self, service_url: str, web_url: str) -> None:
        binary = urlsplit(service_url)
        self._address = binary.hostname or "localhost", binary.port or 6650
        self._admin = Admin(web_url)
        web = urlsplit(web_url)
        self._web = web.hostname or "localhost", web.port or 80
        self._run = f"m{os.getpid():x}{time.time_ns() // 1000:x}"

    def play(self, case: str) -> list[Asked]:
        name = f"{self._run}-{case.replace(' ', '-')}"
        topic, ledger_id = self._make(case, name)
        return [
            self._ask(method, path, body, {"TOPIC": topic, "LEDGER": str(ledger_id)})
            for method, path, body in CASES[case]
        ]

    def _make(self, case: str, name: str) -> tuple[str, int]:
        if case == "no such topic":
            return name, 0
        if case in ("partitioned", "one partition"):
            self._set_up("PUT", f"{name}/partitions", 2)
            topic = f"{name}-partition-0" if case == "one partition" else name
            self._set_up("PUT", f"{topic}/subscription/all", "earliest")
        else:
            topic = name
            self._set_up("PUT", name, None)
            self._set_up("PUT", f"{name}/subscription/all", "earliest")
        ledger_id = -1
        if case not in ("empty", "partitioned"):
            written = entries()[:5] if case == "last is a batch" else entries()
            ledger_id = publish(self._address, f"persistent://public/default/{topic}", written)
            if topic == name:
                self._set_up("PUT", f"{name}/subscription/sub", "earliest")
                self._set_up("POST", f"{name}/subscription/sub/skip/{ACKNOWLEDGED}", None)
        if case == "analyze holes":
            self._acknowledge(f"persistent://public/default/{topic}", ledger_id)
        return topic, ledger_id

    def _acknowledge(self, topic: str, ledger_id: int) -> None:
        with BinarySession(self._address) as session:
            session.connect()
            session.subscribe(topic, "all", kind=pb.CommandSubscribe.Shared)
            ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=9)
            for entry_id in HOLES:
                ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
            session.request(ack, pb.CommandAckResponse)

    def _set_up(self, method: str, path: str, body: object) -> None:
        answer = self._admin.request(method, f"{ROOT}/{path}", body)
        assert answer.status < 300, (path, answer)

    def _ask(self, method: str, path: str, body: Any, names: dict[str, str]) -> Asked:
        text = None if body is None else json.dumps(body).replace('"LEDGER"', names["LEDGER"]).encode()
        place = f"{ROOT}/{names['TOPIC']}/{path.replace('LEDGER', names['LEDGER'])}"
        return plain(method, path, body, self._answer(method, place, text), names)

    def _answer(self, method: str, path: str, body: bytes | None) -> Answer:
        connection = http.client.HTTPConnection(*self._web, timeout=ANSWER_SECONDS_MAX)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            found = {key.lower(): value for key, value in response.getheaders()}
            return Answer(response.status, response.read(), found)
        except TimeoutError:
            return Answer(NO_ANSWER, b"", {})
        finally:
            connection.close()


def plain(method: str, path: str, body: Any, answer: Answer, names: dict[str, str]) -> Asked:
    """An answer without what differs from run to run."""

    def general(text: str) -> str:
        for name, value in names.items():
            old, new = (value, name) if name == "TOPIC" else (f'"{value}:', f'"{name}:')
            text = text.replace(old, new)
        return text

    # The broker stamps each entry here; the real one does so if its configuration says so.
    headers = {
        key: json.loads(general(json.dumps(value))) if key == MESSAGE_ID else value
        for key, value in sorted(answer.headers.items())
        if (key.startswith(HEADER_PREFIX) and key != STAMP) or key == "content-type"
    }
    if any(key.startswith(HEADER_PREFIX) for key in headers):
        return Asked(
            method, path, body, answer.status, headers, base64.b64encode(answer.body).decode("ascii")
        )
    try:
        shown = json.loads(general(answer.text)) if answer.body else ""
    except ValueError:
        shown = None
    if isinstance(shown, dict):
        if isinstance(shown.get("reason"), str):
            shown["reason"] = STACK_TRACE.sub("", shown["reason"])[:300]
        if str(shown.get("ledgerId")) == names["LEDGER"]:
            shown["ledgerId"] = "LEDGER"
    return Asked(method, path, body, answer.status, headers, shown)


def play(service_url: str, web_url: str, names: Sequence[str]) -> dict[str, list[Asked]]:
    player = Player(service_url, web_url)
    return {name: player.play(name) for name in names}


def recorded() -> dict[str, list[Asked]]:
    return {name: [Asked(*row) for row in rows] for name, rows in RECORDING.read().cases.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    RECORDING.main(list(CASES), play, arguments)


if __name__ == "__main__":
    main()
