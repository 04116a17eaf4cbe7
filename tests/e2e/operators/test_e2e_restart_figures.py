"""After a restart each surface says the same of topics that no client has used yet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, run_client
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only

PUBLISHED = 30
DELAYED = {"plain": 0, "later": 30, "mixed": 15, "read": 0}
BACKLOG = {"plain": 30, "later": 30, "mixed": 30, "read": 0}
FAMILIES = (
    "pulsar_subscription_back_log",
    "pulsar_subscription_delayed",
    "pulsar_msg_backlog",
    "pulsar_storage_size",
)

Figures = dict[tuple[str, str], float]


def figures(web: Admin) -> Figures:
    """By name and topic."""
    page = web.request("GET", "/metrics").text
    return {
        (family.name, sample.labels.get("topic", "").rpartition("/")[2]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.name in FAMILIES or family.name.startswith("geminga_topics_")
    }


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("restarts") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def before(process: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """The figures before the first restart. Each topic was read by a consumer that has left."""
    log = tmp_path_factory.mktemp("client") / "client.log"
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log))
    client = pulsar.Client(process.endpoints.service_url, logger=logger)
    web = Admin(process.endpoints.web_url)
    for topic, delayed in DELAYED.items():
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        for number in range(PUBLISHED):
            if number < delayed:
                producer.send(b"%d" % number, deliver_after=timedelta(hours=1))
            else:
                producer.send(b"%d" % number)
        for _ in range(PUBLISHED - delayed):
            message = consumer.receive(10_000)
            if not BACKLOG[topic]:
                consumer.acknowledge(message)
        producer.close()
        consumer.close()
    client.close()

    def all_is_told() -> Figures:
        found = figures(web)
        for topic, delayed in DELAYED.items():
            assert found["pulsar_subscription_delayed", topic] == delayed
            assert found["pulsar_subscription_back_log", topic] == BACKLOG[topic]
        return found

    return eventually(all_is_told)


def test_metrics_status_and_page_say_the_same_after_a_restart(
    process: BrokerProcess, before: Figures
) -> None:
    for ending in (process.stop, process.kill):
        ending()
        process.start()
        _check_restarted(process, before)
    _check_changes(Admin(process.endpoints.web_url))


def _check_restarted(process: BrokerProcess, before: Figures) -> None:
    web = Admin(process.endpoints.web_url)

    def same() -> Figures:
        found = figures(web)
        assert {key: found.get(key) for key in before if key[1]} == {
            key: value for key, value in before.items() if key[1]
        }
        assert found["geminga_topics_unread", ""] == 0
        return found

    found = eventually(same, 30.0)
    # Only those that hold delayed messages back are loaded, as nothing else tells how many there are.
    assert found["geminga_topics_stored", ""] == len(DELAYED)
    assert found["geminga_topics_loaded", ""] == 2
    status = json.loads(run_client(process, "status", "--json"))
    assert (status["topics"], status["topics_loaded"]) == (len(DELAYED), 2)
    assert (status["backlog"], status["delayed"]) == (sum(BACKLOG.values()), sum(DELAYED.values()))
    page = web.request("GET", "/").text
    assert "No message is delayed" not in page
    assert re.search(r"persistent://public/default/plain", page)


def _check_changes(web: Admin) -> None:
    """An unload and a deletion, of a loaded topic and of one that is not."""
    topics = "/admin/v2/persistent/public/default"
    assert web.request("PUT", f"{topics}/later/unload").status == 204
    eventually(lambda: figures(web).get(("pulsar_msg_backlog", "later")) == 30.0)
    # It is loaded again, as only a loaded topic knows what is delayed.
    eventually(lambda: figures(web).get(("pulsar_subscription_delayed", "later")) == 30.0)
    assert figures(web)["geminga_topics_loaded", ""] == 2
    assert web.request("DELETE", f"{topics}/later?force=true").status == 204
    assert web.request("DELETE", f"{topics}/plain?force=true").status == 204

    def gone() -> bool:
        found = figures(web)
        assert ("pulsar_msg_backlog", "later") not in found
        assert ("pulsar_msg_backlog", "plain") not in found
        return found["geminga_topics_stored", ""] == 2

    eventually(gone)
