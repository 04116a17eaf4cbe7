"""Faults between a real client and the broker: what the client sees, and that it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar
import pytest

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.chaos.conftest import Faults
from tests.e2e.waiting import eventually, receive

pytestmark = pytest.mark.geminga_only
LATENCY_MS = 150


@pytest.fixture
def client(chaos_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    made = pulsar.Client(
        chaos_broker.endpoints.service_url,
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield made
    made.close()


def sends_ms(producer: pulsar.Producer, payload: bytes = b"x") -> float:
    began_s = time.monotonic()
    producer.send(payload)
    return (time.monotonic() - began_s) * 1000


HITS = 'geminga_fault_hits_total{place="wire",kind="latency"}'


def test_a_latency_delays_the_command_that_it_names_until_it_is_cleared(
    faults: Faults, client: pulsar.Client
) -> None:
    producer = client.create_producer("latency")
    producer.send(b"before")
    hits = faults.metrics().get(HITS, 0.0)
    said = faults.command(
        "set", "wire/latency", "--latency", f"{LATENCY_MS}ms", "--command", "SEND", "--id", "slow"
    )
    assert said == f"slow: wire/latency command=SEND latencyMs={LATENCY_MS}: in force\n"
    # The connection is older than the rule.
    assert sends_ms(producer) >= LATENCY_MS
    assert faults.state("slow")["hits"] == 1
    assert faults.metrics()['geminga_fault_rules{place="wire",kind="latency"}'] == 1.0
    assert faults.metrics()[HITS] == hits + 1
    listed = faults.command("list").splitlines()
    assert listed[1].split()[:2] == ["slow", "wire/latency"]
    assert faults.command("clear", "slow") == "cleared slow: 1 hits\n"
    producer.send(b"after")
    assert faults.command("list") == "no rules: 'geminga fault set PLACE/KIND' sets one\n"
    assert not any("fault_rules" in name for name in faults.metrics())
    assert faults.metrics()[HITS] == hits + 1


def test_frames_under_a_latency_are_not_delayed_one_after_the_other(
    faults: Faults, client: pulsar.Client
) -> None:
    producer = client.create_producer("window", batching_enabled=False)
    faults.set("wire/latency", latencyMs=LATENCY_MS, command="SEND")
    began_s = time.monotonic()
    for number in range(20):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    assert LATENCY_MS <= (time.monotonic() - began_s) * 1000 < 20 * LATENCY_MS


def test_a_rule_ends_by_its_count_and_another_client_is_not_hit(
    faults: Faults, client: pulsar.Client
) -> None:
    producer = client.create_producer("count")
    other = faults.set("wire/cut", client="10.1.2.3")
    version = faults.set("wire/cut", version="Pulsar-Java")
    once = faults.set("wire/latency", latencyMs=1, version="Pulsar-CPP", command="SEND", count=1)
    producer.send(b"1")
    producer.send(b"2")
    assert [faults.state(rule)["hits"] for rule in (other, version, once)] == [0, 0, 1]
    assert faults.state(once)["ended"] == "count"


def test_a_cut_connection_is_opened_again_and_nothing_is_lost(faults: Faults, client: pulsar.Client) -> None:
    consumer = client.subscribe("cut", "s")
    producer = client.create_producer("cut")
    rule = faults.set("wire/cut", command="SEND", after=1, count=1)
    for number in range(3):
        producer.send(b"%d" % number)
    assert faults.state(rule)["hits"] == 1
    assert [receive(consumer).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_half_closed_connection_loses_the_receipt_and_not_the_message(
    faults: Faults, client: pulsar.Client
) -> None:
    consumer = client.subscribe("half", "s")
    producer = client.create_producer("half")
    rule = faults.set("wire/half-close", command="SEND_RECEIPT", direction="out", count=1)
    producer.send(b"twice")
    assert faults.state(rule)["hits"] == 1
    # Stored before its receipt was lost, and sent again over a new connection, without deduplication.
    assert [receive(consumer).data() for _ in range(2)] == [b"twice", b"twice"]


def test_a_throttled_client_waits_for_its_bytes(faults: Faults, client: pulsar.Client) -> None:
    producer = client.create_producer("throttle")
    producer.send(b"before")
    faults.set("wire/throttle", bytesPerS=100_000, direction="in")
    assert sends_ms(producer, b"x" * 30_000) >= 250
    faults.clear_all()


def test_a_flipped_bit_is_found_by_the_checksum(faults: Faults, client: pulsar.Client) -> None:
    consumer = client.subscribe("flip", "s")
    producer = client.create_producer("flip")
    rule = faults.set("wire/flip", command="SEND", count=1, seed=5)
    payload = bytes(range(256)) * 200
    with pytest.raises(pulsar.ChecksumError):
        producer.send(payload)
    assert faults.state(rule)["hits"] == 1
    producer.send(b"whole")
    assert receive(consumer).data() == b"whole"


def test_a_rule_ends_by_its_duration(faults: Faults, client: pulsar.Client) -> None:
    producer = client.create_producer("duration")
    rule = faults.set("wire/latency", latencyMs=300, command="SEND", durationMs=100)
    assert sends_ms(producer) >= 0
    eventually(lambda: faults.state(rule)["ended"] == "duration")
    hits = faults.state(rule)["hits"]
    producer.send(b"after")
    assert faults.state(rule)["hits"] == hits
