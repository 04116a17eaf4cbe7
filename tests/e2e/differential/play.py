"""Plays the cases against one broker, each with a namespace, a topic and names of its own.

The namespace is `public/NAMESPACE`, with the topic `topic` (three messages, a subscription `sub`) and the
partitioned topic `parted` where the case is about topics. Answers come back without what differs between two
runs: names made up for the case, addresses, stack traces.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.e2e.binary_session import BinarySession
from tests.e2e.differential.cases import NAMES, PARTITIONED, Step

ANSWER_SECONDS_MAX = 6.0
"""The real broker never answers some bodies of `null`."""
MESSAGES = 3
WITH_TOPICS = (
    "/persistent/",
    "/schemas/",
    "{topic-domain}",
    "learBacklog",
    "unsubscribe",
    "}/topics",
    "OnTopics",
)
"""Paths whose namespace has topics."""
NEW_NAMESPACE = "/namespaces/{tenant}/{namespace}"
NO_ANSWER = 0
SET_UP_TRIES = 5
BULK = re.compile(r"/(metrics|mbeans|allocator-stats/[^/]*|runtime)$")
"""Answers so large that only whether there is one is kept."""
STACK_TRACE = re.compile(r"\n+ ?(--- An unexpected|Stacktrace:|java\.|org\.|\tat ).*", re.DOTALL)


class Asked(NamedTuple):
    method: str
    path: str
    body: str | None
    status: int
    answer: Any
    """JSON; null for an answer that is none; "" for no body."""
    allow: str
    """The header, of a 405."""


class Player:
    def __init__(self, service_url: str, web_url: str, *, settling_s: float = 0.0) -> None:
        parts = urlsplit(web_url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "localhost", parts.port or 80, timeout=ANSWER_SECONDS_MAX
        )
        binary = urlsplit(service_url)
        self._address = binary.hostname or "localhost", binary.port or 6650
        self._broker = f"{parts.hostname}:{parts.port}"
        self._settling_s = settling_s
        self._run = f"{os.getpid():x}{time.time_ns() // 1000:x}"
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def play(self, path: str, steps: Iterable[Step]) -> list[Asked]:
        """The steps of one case with this broker's answers."""
        self._number += 1
        own = f"d{self._run}n{self._number}"
        names = {**NAMES, "tenant": "public", "namespace": own, "topic": "topic", "resourcegroup": own}
        names["namespaceName"] = f"public/{own}"
        names["brokerId"] = names["broker"] = self._broker
        if path.startswith("/admin/v2/clusters"):
            names["cluster"] = own
            if "{cluster}/" in path:
                self._set_up("PUT", f"/admin/v2/clusters/{own}", '{"serviceUrl": "http://127.0.0.1:1"}')
        if path.startswith("/admin/v2/tenants"):
            names["tenant"] = own
        if ("{namespace}" in path or path.endswith("OnTopics")) and not path.endswith(NEW_NAMESPACE):
            self._set_up("PUT", f"/admin/v2/namespaces/public/{own}")
        if path.endswith("/resourcegroup/{resourcegroup}"):
            self._set_up("PUT", f"/admin/v2/resourcegroups/{own}", '{"publishRateInMsgs": 10}')
        if any(part in path for part in WITH_TOPICS):
            names |= self._make_topics(own)
            if path.rpartition("/")[2] in PARTITIONED and not path.endswith("{namespace}/partitioned"):
                names["topic"] = "parted"
            if path.endswith("terminate/partitions"):
                names["topic"] = "parted"
            if path.endswith("{namespace}/{topic}"):
                names["topic"] = "new"
        return [self._ask(step, names, own) for step in steps]

    def _set_up(self, method: str, path: str, body: str | None = None) -> None:
        for _ in range(SET_UP_TRIES):
            status = self._request(method, path, body)[0]
            if status != NO_ANSWER:
                break
        assert status != NO_ANSWER, (method, path)

    def _make_topics(self, own: str) -> dict[str, str]:
        root = f"/admin/v2/persistent/public/{own}"
        self._set_up("PUT", f"{root}/topic")
        self._set_up("PUT", f"{root}/topic/subscription/sub", '"earliest"')
        self._set_up("PUT", f"{root}/parted/partitions", "2")
        with BinarySession(self._address) as session:
            session.connect()
            session.create_producer(f"persistent://public/{own}/topic")
            for number in range(MESSAGES):
                receipt = session.publish(b"payload", sequence_id=number)
        return {"ledgerId": str(receipt.message_id.ledgerId)}

    def _ask(self, step: Step, names: dict[str, str], own: str) -> Asked:
        def filled(text: str) -> str:
            return re.sub(r"\{([A-Za-z-]+)(:[^}]*)?\}", lambda name: names.get(name[1], name[0]), text)

        path = filled(step.path)
        body = None if step.body is None else filled(step.body)
        status, raw, allow = self._request(step.method, path, body)
        if step.method != "GET" and "/persistent/" in path:
            time.sleep(self._settling_s)  # noqa: TID251 - only while recording: it tells nobody when
        answer = "large" if BULK.search(path) and status == 200 else self._plain(raw, own, names)
        return Asked(*step, status, answer, allow)

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, bytes, str]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        for _ in range(2):
            try:
                self._connection.request(method, path, body, headers)
                response = self._connection.getresponse()
                raw = response.read()
                allow = response.getheader("Allow", "") if response.status == 405 else ""
                return response.status, raw, ",".join(sorted(allow.replace(" ", "").split(",")))
            except (ConnectionError, http.client.HTTPException):
                self._connection.close()
            except TimeoutError:
                self._connection.close()
                break
        return NO_ANSWER, b"", ""

    def _plain(self, raw: bytes, own: str, names: dict[str, str]) -> Any:
        text = raw.decode(errors="replace").replace(own, "NAMESPACE").replace(self._broker, "BROKER")
        text = text.replace(f"{names.get('ledgerId')}:", "LEDGER:")
        text = re.sub(
            r"(localhost|127\.0\.0\.1|\[?::1\]?):(?!1\b|2\b|3\b|4\b|9999\b|3181\b)\d+", "ADDRESS", text
        )
        if not text:
            return ""
        try:
            shown = json.loads(text)
        except ValueError:
            return None
        if isinstance(shown, dict) and isinstance(shown.get("reason"), str):
            shown["reason"] = STACK_TRACE.sub("", shown["reason"])[:300]
        return shown
