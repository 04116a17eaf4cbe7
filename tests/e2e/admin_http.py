"""The admin API as a test calls it: plain HTTP requests, answers with their status."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tests.e2e.waiting import eventually

HTTP_SECONDS_MAX = 30.0
HEALTH = "/admin/v2/brokers/health"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def topic_path(topic: str) -> str:
    """`persistent://t/n/x` as a path under /admin/v2: `persistent/t/n/x`, percent-encoded."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"


class Admin:
    def __init__(self, web_url: str) -> None:
        parts = urlsplit(web_url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80

    def request(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Answer:
        """One request on a connection of its own; a `body` is sent as JSON. Redirects are followed."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=HTTP_SECONDS_MAX)
        headers = {}
        payload = raw
        if body is not None:
            payload = json.dumps(body).encode()
        if payload is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            answer = Answer(
                response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}
            )
        finally:
            connection.close()
        if answer.status in (302, 307) and "location" in answer.headers:
            target = urlsplit(answer.headers["location"])
            return Admin(f"http://{target.hostname}:{target.port}").request(
                method, target.path + (f"?{target.query}" if target.query else ""), body, raw=raw
            )
        return answer

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def well(self, path: str = HEALTH) -> Answer:
        """The answer of a broker that is well. A busy machine may take longer for a message than one check
        waits, which then says 503; so this asks until an answer is 200.
        """

        def asked() -> Answer:
            answer = self.get(path)
            assert answer.status == 200, answer
            return answer

        return eventually(asked, what=f"200 from {path}")

    def put(self, path: str, body: Any = None) -> Answer:
        return self.request("PUT", path, body)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.request("POST", path, body)

    def delete(self, path: str) -> Answer:
        return self.request("DELETE", path)

    def create_partitions(self, topic: str, count: int) -> None:
        answer = self.put(f"/admin/v2/{topic_path(topic)}/partitions", count)
        assert answer.status == 204, answer

    def stats(self, topic: str) -> Any:
        answer = self.get(f"/admin/v2/{topic_path(topic)}/stats")
        assert answer.status == 200, answer
        return answer.json()

    def backlog(self, topic: str, subscription: str) -> int:
        return int(self.stats(topic)["subscriptions"][subscription]["msgBacklog"])

    def subscription(self, topic: str, subscription: str) -> Any:
        return self.stats(topic)["subscriptions"][subscription]
