"""The pages at `/` and of a topic, of a running broker with real topics behind them."""

from __future__ import annotations

import html
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pulsar
import pytest

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import eventually, now_ms

SETTINGS = {
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def chaotic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    data_dir = tmp_path_factory.mktemp("front") / "data"
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=["--chaos"]) as process:
        yield process.endpoints


def page_of(broker: Endpoints, path: str = "/") -> tuple[str, str]:
    with urllib.request.urlopen(f"{broker.web_url}{path}") as answer:
        return answer.read().decode(), answer.headers["Content-Security-Policy"]


def cells(text: str, key: str) -> list[str]:
    """The figures of the first row with this key."""
    row = re.search(rf'<tr data-key="{re.escape(html.escape(key))}">(.*?)</tr>', text)
    return re.findall("<td.*?>(.*?)</td>", row[1]) if row else []


def section(text: str, key: str) -> str:
    found = re.search(f'<section id="{key}".*?</section>', text)
    return html.unescape(re.sub("<.*?>", " ", found[0])) if found else ""


def test_topics_backlogs_and_due_times_are_on_the_page(
    broker: Endpoints, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + HOUR_MS
    for number in range(30):
        producer.send_async(b"x", lambda *_: None, deliver_at=due_ms + number * 60_000)
    producer.flush()
    producer.send(b"now")
    message = consumer.receive(10_000)
    assert message.data() == b"now"
    name = topic.rpartition("/")[2]
    path = f"/?q={name}&sort=delayed"
    # The first delayed message has the index imported, and is counted a moment later.
    eventually(lambda: cells(page_of(broker, path)[0], topic)[2:7] == ["31", "30", "1", "1", "1"])
    text, policy = page_of(broker, path)
    assert policy.startswith("default-src 'none'")
    assert "One topic fits." in section(text, "topics")
    bars = re.findall(r"<title>(\d+) messages? (?:is|are) due", page_of(broker)[0])
    assert sum(map(int, bars)) >= 30
    assert cells(page_of(broker, "/?q=no-such-name")[0], topic) == []


@pytest.mark.geminga_only
def test_the_script_that_renews_the_page_is_a_file_of_the_broker(broker: Endpoints) -> None:
    text, policy = page_of(broker)
    path = re.search('<script src="(.*?)"', text)
    assert path is not None
    with urllib.request.urlopen(f"{broker.web_url}{path[1]}") as answer:
        assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert "fetch(location.href" in answer.read().decode()
    assert "script-src 'self'" in policy
    assert "http-equiv" not in text
    assert '<a href="">Reload</a>' in text


@pytest.mark.geminga_only
def test_a_lost_bucket_is_on_the_page_until_it_is_rebuilt(chaotic: Endpoints) -> None:
    client = pulsar.Client(
        chaotic.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    )
    web, topic = Admin(chaotic.web_url), "persistent://public/default/orders <&>"
    row = f"{topic} billing"
    consumer = client.subscribe(topic, "billing", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(110):
        producer.send_async(b"x", lambda *_: None, deliver_at=now_ms() + HOUR_MS + number)
    producer.flush()

    def figures() -> list[str]:
        return cells(page_of(chaotic)[0], row)

    # Not yet due, overdue; sealed buckets; lost, rebuilt.
    eventually(lambda: figures()[:2] == ["110", "0"] and int(figures()[3]) >= 4)
    assert figures()[4:6] == ["0", "0"]
    of_topic = f"/geminga/topics/{topic_path(topic)}"
    looked = section(page_of(chaotic, of_topic)[0], "of-0")
    assert "Subscription billing" in looked
    assert consumer.consumer_name() in looked
    assert re.search("sealed buckets +[4-9]", looked)
    producer.close()
    consumer.close()
    damage = f"/geminga/delayed/{topic_path(topic)}/subscription/billing/lose-bucket"
    assert web.post(damage, {"quietly": True}).status == 200
    assert web.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
    # The broker loads it again, finds the loss, and reads what is missing; no consumer has to come.
    eventually(lambda: figures()[4:6] == ["1", "1"])
    assert "bucket-lost" in section(page_of(chaotic)[0], "events")
    [loss] = web.well("/geminga/health").json()["losses"]
    assert loss.startswith("buckets of the delayed index that were lost since the start: 1; ")
    lost = f"{topic}, subscription billing: its delayed index has lost one bucket"
    eventually(lambda: lost not in section(page_of(chaotic)[0], "state"))
    assert figures()[:2] == ["110", "0"]
    client.close()


@pytest.mark.geminga_only
def test_the_page_of_no_topic_is_not_found(broker: Endpoints) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page_of(broker, "/geminga/topics/persistent/public/default/no-such-topic")
