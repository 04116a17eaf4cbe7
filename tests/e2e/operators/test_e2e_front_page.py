"""The page at `/` of a running broker, with real topics behind it."""

from __future__ import annotations

import re
import urllib.request

import pulsar

from tests.e2e.broker_process import Endpoints
from tests.e2e.waiting import eventually, now_ms


def page_of(broker: Endpoints) -> tuple[str, str]:
    with urllib.request.urlopen(f"{broker.web_url}/") as answer:
        return answer.read().decode(), answer.headers["Content-Security-Policy"]


def test_topics_backlogs_and_due_times_are_on_the_page(
    broker: Endpoints, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 3_600_000
    for number in range(30):
        producer.send_async(b"x", lambda *_: None, deliver_at=due_ms + number * 60_000)
    producer.flush()
    producer.send(b"now")
    message = consumer.receive(10_000)
    assert message.data() == b"now"
    _, policy = page_of(broker)
    assert policy.startswith("default-src 'none'")
    # The first delayed message has the index imported, and is counted a moment later.
    eventually(lambda: shown(page_of(broker)[0], topic) == ["31", "30", "1", "1", "1"])
    bars = re.findall(r"<title>(\d+) messages are due", page_of(broker)[0])
    assert sum(map(int, bars)) >= 30


def shown(html: str, topic: str) -> list[str]:
    """Backlog, delayed, unacknowledged, producers and consumers of one topic's row."""
    row = re.search(rf"<tr><td><a [^>]*>{re.escape(topic)}</a></td>(.*?)</tr>", html)
    return re.findall("<td>(.*?)</td>", row[1])[2:7] if row else []
