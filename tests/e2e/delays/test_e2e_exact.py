"""Delayed messages come at their times by default, and early only where that was asked for."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from geminga.cli.admin.delayed_text import AT_ONCE, precision_lines
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import ROOT, BrokerProcess, Endpoints
from tests.e2e.waiting import eventually, now_ms, receive

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
Notes = dict[int, int]
"""When each message came, by its number: its lateness in ms, negative if it was early."""
TICK = {"active": True, "tickTime": 5000, "maxDeliveryDelayInMillis": 0}
LOOSE = {"isDelayedDeliveryDeliverAtTimeStrict": "false"}


def listen(client: pulsar.Client, topic: str, name: str, kind: ConsumerType) -> Notes:
    """A subscription that notes and acknowledges what comes; bodies are `number due_ms`."""
    late_ms: Notes = {}

    def note(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        at_ms = now_ms()
        number, due_ms = map(int, message.data().split())
        late_ms[number] = at_ms - due_ms
        consumer.acknowledge(message)

    client.subscribe(topic, name, kind, message_listener=note)
    return late_ms


def publish(client: pulsar.Client, topic: str, delays_ms: list[int]) -> None:
    producer = client.create_producer(topic)
    for number, delay_ms in enumerate(delays_ms):
        due_ms = now_ms() + delay_ms
        body = b"%d %d" % (number, due_ms)
        producer.send_async(body, lambda *_: None, deliver_at=due_ms, partition_key=f"k{number % 7}")
    producer.flush()


def set_tick(web: Admin, topic: str) -> None:
    """As `pulsar-admin topicPolicies set-delayed-delivery -e -t 5s`."""
    path = f"/admin/v2/{topic_path(topic)}/delayedDelivery"
    assert web.post(path, TICK).status == 204
    eventually(lambda: web.get(f"{path}?applied=true").json()["tickTime"] == 5000)


@pytest.mark.parametrize("has_tick", [False, True], ids=["defaults", "tick of 5 s"])
def test_none_is_early(client: pulsar.Client, admin: Admin, topic: str, has_tick: bool) -> None:
    notes = [
        listen(client, topic, "shared", ConsumerType.Shared),
        listen(client, topic, "key-shared", ConsumerType.KeyShared),
    ]
    if has_tick:
        set_tick(admin, topic)
    publish(client, topic, random.Random(1).choices(range(50, 1500), k=400))
    for late_ms in notes:
        eventually(lambda found=late_ms: len(found) == 400)
        assert [late for late in late_ms.values() if late < 0] == []


@pytest.fixture(scope="module")
def loose_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    with BrokerProcess(tmp_path_factory.mktemp("loose") / "data", settings=LOOSE) as process:
        yield process.endpoints


def test_a_broker_that_is_not_strict_may_be_a_tick_early(
    make_client: Make, loose_broker: Endpoints, topic: str
) -> None:
    client = make_client(loose_broker.service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"later", deliver_at=now_ms() + 60_000)
    set_tick(web := Admin(loose_broker.web_url), topic)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 4000
    producer.send(b"soon", deliver_at=due_ms)
    assert receive(consumer).data() == b"soon"
    assert now_ms() < due_ms
    assert web.subscription(topic, "s")["msgDelayed"] == 1


def geminga(process: BrokerProcess, topic: str, *options: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "geminga", "delayed", "precision", topic, "-s", "early", *options]
    done = subprocess.run(
        [*command, "--url", process.endpoints.web_url], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def precision_path(topic: str, subscription: str = "early") -> str:
    return f"/geminga/delayed/{topic_path(topic)}/subscription/{subscription}/precision"


def published_to_both(client: pulsar.Client, topic: str) -> tuple[Notes, Notes]:
    """Of 200 messages that are due within a time bucket of 1 s which has yet to begin."""
    exact = listen(client, topic, "exact", ConsumerType.Shared)
    early = listen(client, topic, "early", ConsumerType.KeyShared)
    at_ms = now_ms()
    bucket_ms = at_ms - at_ms % 1000 + 1000
    if bucket_ms - at_ms < 400:
        bucket_ms += 1000
    publish(client, topic, [bucket_ms - at_ms + 500 + number for number in range(200)])
    eventually(lambda: len(exact) == len(early) == 200)
    return exact, early


def test_a_precision_is_a_subscriptions_own_and_survives_a_kill(
    make_client: Make, tmp_path: Path, topic: str
) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        client = make_client(process.endpoints.service_url)
        client.subscribe(topic, "early", ConsumerType.Shared).close()
        assert "no precision" in geminga(process, topic)
        assert "every 1s" in geminga(process, topic, "--set", "1s")
        process.kill()
        process.start()
        web = Admin(process.endpoints.web_url)
        client = make_client(process.endpoints.service_url)
        exact, early = published_to_both(client, topic)
        assert min(exact.values()) >= 0
        assert min(early.values()) > -1000
        assert max(early.values()) < min(exact.values()), "a batch before any is due"
        assert web.get(precision_path(topic)).json() == {"precisionMs": 1000, "holdsBack": True}
        assert web.get(precision_path(topic, "exact")).json() == {"precisionMs": None, "holdsBack": True}
        stats: dict[str, Any] = web.get(f"/admin/v2/{topic_path(topic)}/stats").json()
        assert "subscriptionProperties" in stats["subscriptions"]["early"]
        assert stats["subscriptions"]["early"]["subscriptionProperties"] == {}
        assert web.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
        assert web.get(precision_path(topic)).json() == {"precisionMs": 1000, "holdsBack": True}
        assert "no precision" in geminga(process, topic, "--unset")
        assert web.get(precision_path(topic)).json() == {"precisionMs": None, "holdsBack": True}
        assert "the widest precision is 1d" in geminga(process, topic, "--set", "2d", code=1)
        client.close()
        make_client(process.endpoints.service_url).subscribe(topic, "early", ConsumerType.Exclusive)
        assert geminga(process, topic, "--set", "1s").splitlines()[-1] == f"without effect now: {AT_ONCE}"


def test_a_precision_that_cannot_be_is_refused(admin: Admin, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "early", ConsumerType.Shared)
    for given in (-1, 86_400_001, "1s", 1.5, True, None):
        answer = admin.post(precision_path(topic), {"precisionMs": given})
        assert (answer.status, "precisionMs" in answer.text) == (400, True)
    assert admin.post(precision_path(topic), {}).status == 400
    assert admin.get(precision_path(topic, "nobody")).status == 404
    assert admin.get(precision_path(topic)).json() == {"precisionMs": None, "holdsBack": True}
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    stats = admin.get(f"/admin/v2/{topic_path(topic)}/stats").json()
    [name] = [name for name in stats["subscriptions"] if name != "early"]
    answer = admin.post(precision_path(topic, name), {"precisionMs": 5})
    assert (answer.status, "not durable" in answer.text) == (405, True)
    reader.close()


def test_all_partitions_get_a_precision(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.create_partitions(topic, 3)
    client.subscribe(topic, "early", ConsumerType.Shared)
    assert admin.post(precision_path(topic), {"precisionMs": 700}).status == 204
    names = [topic, *(f"{topic}-partition-{number}" for number in range(3))]
    assert [admin.get(precision_path(name)).json() for name in names] == [
        {"precisionMs": 700, "holdsBack": True}
    ] * 4
    assert admin.delete(precision_path(topic)).status == 204
    assert [admin.get(precision_path(name)).json() for name in names] == [
        {"precisionMs": None, "holdsBack": True}
    ] * 4
    assert admin.post(precision_path(names[2]), {"precisionMs": 5}).status == 204
    by_partition = {"0": None, "1": 5, "2": None}
    differing = {"precisionMs": None, "byPartition": by_partition, "holdsBack": True}
    assert admin.get(precision_path(topic)).json() == differing
    lines = list(precision_lines(differing))
    assert (
        lines[1]
        == "partition 1: messages are delivered together every 5ms, each less than 5ms before its time"
    )
    assert [line.partition(":")[0] for line in lines] == [
        *(f"partition {n}" for n in range(3)),
        "partitions differ",
    ]
