"""Snapshots and seeds from the test kit, with a broker in this process and the official client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pulsar
import pytest

import geminga
from geminga.snapshot_requests import SnapshotFailed
from geminga.testing.requests import ask
from geminga.testing.running import RunningBroker

SEED = """
[[namespaces]]
name = "shop/orders"
policies = { retention = { retentionTimeInMinutes = 60, retentionSizeInMB = 10 } }

[[topics]]
name = "shop/orders/placed"
partitions = 3
subscriptions = ["billing"]
policies = { messageTTL = 3600 }
messages = [
    { text = "first", key = "ann", properties = { source = "web" } },
    { text = "again", key = "ann", repeat = 4 },
]

[[topics]]
name = "shop/orders/reminders"
subscriptions = ["app"]
messages = [{ json = { order = 1 }, delay = "30d" }]
"""
SETTINGS = {"gemingaClock": "virtual", "chaosEnabled": "true"}


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with geminga.running(settings=SETTINGS) as running:
        yield running


@contextmanager
def client_of(broker: RunningBroker) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(broker.service_url, logger=logger)) as client:
        yield client


def test_a_seeded_broker_is_saved_reset_and_restored(broker: RunningBroker, tmp_path: Path) -> None:
    seed = tmp_path / "seed.toml"
    seed.write_text(SEED)
    broker.seed(seed)
    with client_of(broker) as client:
        consumer = client.subscribe("shop/orders/placed", "billing", pulsar.ConsumerType.Shared)
        found = [consumer.receive(5000) for _ in range(5)]
        assert [message.data() for message in found] == [b"first", *[b"again"] * 4], "of one key: in order"
        assert found[0].partition_key() == "ann"
        assert found[0].properties() == {"source": "web"}
        consumer.close()  # none is acknowledged
    assert ask(broker.web_url, "GET", "/admin/v2/persistent/shop/orders/placed/messageTTL") == 3600
    retention = ask(broker.web_url, "GET", "/admin/v2/namespaces/shop/orders/retention")
    assert retention == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
    broker.save_snapshot(tmp_path / "seeded")
    for path in (tmp_path / "seeded").rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)  # as a repository's files may be
    broker.reset()
    assert ask(broker.web_url, "GET", "/admin/v2/tenants") == ["public", "pulsar"]
    broker.restore_snapshot(tmp_path / "seeded")
    with client_of(broker) as client:
        consumer = client.subscribe("shop/orders/reminders", "app", pulsar.ConsumerType.Shared)
        ask(broker.web_url, "POST", "/geminga/clock", {"ms": 29 * 86_400_000})
        with pytest.raises(pulsar.Timeout):
            consumer.receive(100)
        ask(broker.web_url, "POST", "/geminga/clock", {"ms": 86_400_000})
        assert consumer.receive(5000).data() == b'{"order":1}'


def test_a_seed_may_be_applied_again(broker: RunningBroker, tmp_path: Path) -> None:
    broker.reset()
    seed = tmp_path / "seed.jsonl"
    seed.write_text('{"topic": "t", "partitions": 2, "subscriptions": ["s"]}\n{"to": "t", "text": "x"}\n')
    broker.seed(seed)
    broker.seed(seed)
    stats = ask(broker.web_url, "GET", "/admin/v2/persistent/public/default/t/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 2
    seed.write_text('{"topic": "t", "partitions": 3}')
    with pytest.raises(SnapshotFailed, match="is there with 2 partitions, and the seed asks for 3"):
        broker.seed(seed)
    seed.write_text('{"topic": "t", "policies": {"none": 1}}')
    with pytest.raises(SnapshotFailed, match="policy none: "):
        broker.seed(seed)
    with pytest.raises(SnapshotFailed, match=r"none\.toml"):
        broker.seed(tmp_path / "none.toml")


def test_why_a_broker_is_not_restored(broker: RunningBroker, tmp_path: Path) -> None:
    with pytest.raises(SnapshotFailed, match="is not a directory"):
        broker.restore_snapshot(tmp_path / "none")
    with geminga.running() as careful, pytest.raises(SnapshotFailed, match="started with --chaos"):
        careful.reset()


def test_a_reset_keeps_the_kind_of_clock(tmp_path: Path) -> None:
    with geminga.running(tmp_path / "data", settings=SETTINGS):
        pass
    with geminga.running(tmp_path / "data", settings={"chaosEnabled": "true"}) as broker:
        broker.reset()
        assert ask(broker.web_url, "GET", "/geminga/clock")["clock"] == "virtual"


def test_a_child_broker_has_the_same(tmp_path: Path) -> None:
    with geminga.ChildBroker(arguments=["--chaos"]) as broker:
        url = broker.service_url
        broker.save_snapshot(tmp_path / "empty")
        ask(broker.web_url, "PUT", "/admin/v2/persistent/public/default/t")
        broker.restore_snapshot(tmp_path / "empty")
        assert ask(broker.web_url, "GET", "/admin/v2/persistent/public/default") == []
        assert broker.service_url == url
