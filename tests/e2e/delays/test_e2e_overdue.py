"""What is told of due messages that nobody takes, after a restart and before a consumer comes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.delays.test_e2e_delayed_index import FAR_MS, SETTINGS, publish, receive_timed
from tests.e2e.waiting import eventually, now_ms

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
METRICS = ("pulsar_subscription_delayed", "geminga_subscription_overdue", "geminga_subscription_unread")


def test_a_restart_changes_nothing_that_is_told(tmp_path: Path, make_client: Make, topic: str) -> None:
    """Half of each bucket was delivered, and is not overdue; what is overdue is in no bucket."""
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:

        def told(action: str = "", body: Any = None) -> Any:
            web = Admin(process.endpoints.web_url)
            path = f"/geminga/delayed/{topic_path(topic)}/subscription/s{action}"
            answer = web.get(path) if body is None else web.post(path, body)
            assert answer.status == 200, answer
            return answer.json()

        def metrics() -> tuple[float, ...]:
            """Delayed, overdue, unread."""
            found = []
            page = Admin(process.endpoints.web_url).get("/metrics/").text.splitlines()
            for name in METRICS:
                lines = [line for line in page if line.startswith(f"{name}{{") and topic in line]
                found.append(float(lines[0].split()[-1]) if lines else -1.0)
            return tuple(found)

        def figures() -> tuple[float, ...]:
            """The same of the metrics, and of the summary."""
            summary = told()
            return *metrics(), *(summary[key] for key in ("messages", "due", "unread"))

        def unserved() -> str | None:
            """Entries in the first row of "Backlogs without a consumer"; None: there is no such section."""
            page = Admin(process.endpoints.web_url).get("/").text
            found = re.search(
                r"<h2[^>]*>Backlogs without a consumer.*?</th><td[^>]*>([^<]*)", page, re.DOTALL
            )
            return found[1] if found else None

        client = make_client(process.endpoints.service_url)
        consumer = client.subscribe(topic, "s", ConsumerType.Shared)
        producer = client.create_producer(topic)
        soon_ms = now_ms() + 1500
        publish(producer, [soon_ms if n % 2 else soon_ms + FAR_MS + n for n in range(200)])
        receive_timed(consumer, 100)
        eventually(lambda: Admin(process.endpoints.web_url).backlog(topic, "s") == 100)
        consumer.close()
        assert unserved() is None, "nothing of it is due"
        publish(producer, [now_ms() + 300] * 7)
        client.close()
        eventually(lambda: figures() == (107, 7, 0, 107, 7, 0))
        assert eventually(unserved) == "7"
        assert process.stop() == 0
        process.start()
        eventually(lambda: figures() == (107, 7, 0, 107, 7, 0))
        assert told()["notRead"] == []
        last = told("/messages?limit=200")["messages"][-1]
        place = (last["ledgerId"], last["entryId"])
        why = told("/why/{}/{}".format(*place))
        assert (why["reason"], why["dueMs"]) == ("due", last["dueMs"])
        assert told("/cancel", {"messages": ["{}:{}".format(*place)]})["cancelled"] == 1
        eventually(lambda: figures() == (106, 6, 0, 106, 6, 0))
        web = Admin(process.endpoints.web_url)
        assert web.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
        eventually(lambda: metrics() == (106, 6, 0))
