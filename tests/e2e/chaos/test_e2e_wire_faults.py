"""Faults between a real client and the broker: what the client sees, and that it ends."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pulsar
import pytest

from tests.e2e.broker_process import ROOT, BrokerProcess
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


def test_a_jitter_draws_each_delay_and_keeps_the_order(faults: Faults, client: pulsar.Client) -> None:
    consumer = client.subscribe("jitter", "s")
    producer = client.create_producer("jitter", batching_enabled=False)
    said = faults.command(
        "set", "wire/latency", "--latency", "60ms", "--jitter", "60ms", "--command", "SEND", "--seed", "3"
    )
    assert "latencyMs=60 seed=3 jitterMs=60: in force" in said
    generator = random.Random(3)
    drawn_ms = [generator.uniform(0, 120) for _ in range(8)]
    assert min(drawn_ms) < 30 < 100 < max(drawn_ms)
    for due_ms in drawn_ms:
        assert sends_ms(producer) >= due_ms
    for number in range(20):
        producer.send_async(b"%d" % number, lambda *_: None)
    assert [receive(consumer).data() for _ in range(28)][8:] == [b"%d" % number for number in range(20)]


def test_what_a_black_hole_takes_stays_lost_and_the_connection_open(
    faults: Faults, client: pulsar.Client
) -> None:
    consumer = client.subscribe("hole", "s")
    producer = client.create_producer("hole", send_timeout_millis=300, batching_enabled=False)
    producer.send(b"before")
    rule = faults.set("wire/black-hole", command="SEND", direction="in", version="Pulsar-CPP")
    with pytest.raises(pulsar.Timeout):
        producer.send(b"lost")
    assert faults.state(rule)["hits"] == 1
    cut = faults.set("wire/cut", command="CONNECT")
    faults.command("clear", rule)
    # By the same connection: another one would be cut.
    producer.send(b"after")
    assert [receive(consumer).data() for _ in range(2)] == [b"before", b"after"]
    assert faults.state(cut)["calls"] == 0


def test_a_black_hole_of_one_direction_takes_nothing_of_the_other(
    faults: Faults, client: pulsar.Client
) -> None:
    consumer = client.subscribe("hole-out", "s")
    producer = client.create_producer("hole-out", send_timeout_millis=300, batching_enabled=False)
    faults.set("wire/black-hole", command="SEND_RECEIPT", direction="out")
    with pytest.raises(pulsar.Timeout):
        producer.send(b"stored")
    assert receive(consumer).data() == b"stored"


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_frame_in_slices_arrives_whole_and_in_order(
    faults: Faults, client: pulsar.Client, direction: str
) -> None:
    topic = f"slice-{direction}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    command = "SEND" if direction == "in" else "MESSAGE"
    rule = faults.set("wire/slice", sliceBytes=100, latencyMs=10, command=command, direction=direction)
    payload = random.Random(1).randbytes(1000)
    began_s = time.monotonic()
    producer.send(payload)
    producer.send(b"next")
    assert [receive(consumer).data() for _ in range(2)] == [payload, b"next"]
    # Ten pauses at least.
    assert time.monotonic() - began_s >= 0.1
    assert faults.state(rule)["hits"] == 2


def published_by_another_client(broker: BrokerProcess, topic: str) -> None:
    command = [sys.executable, "-m", "geminga", "produce", topic, "-m", "x", "--url"]
    subprocess.run([*command, broker.endpoints.service_url], capture_output=True, cwd=ROOT, check=True)


def test_a_throttle_of_what_comes_in_does_not_hold_up_what_goes_out(
    faults: Faults, client: pulsar.Client, chaos_broker: BrokerProcess
) -> None:
    consumer = client.subscribe("throttle-in", "s")
    producer = client.create_producer("throttle-in")
    faults.set("wire/throttle", bytesPerS=1, direction="in", version="Pulsar-CPP")
    receipts: list[object] = []
    producer.send_async(b"slow", lambda *result: receipts.append(result))
    published_by_another_client(chaos_broker, "throttle-in")
    # Both are on one connection, and the message above would take minutes.
    assert receive(consumer).data() == b"x"
    assert receipts == []
    faults.clear_all()
    assert receive(consumer).data() == b"slow"


def test_a_throttle_of_what_goes_out_does_not_hold_up_what_comes_in(
    faults: Faults, client: pulsar.Client, chaos_broker: BrokerProcess
) -> None:
    producer = client.create_producer("throttle-out")
    faults.set("wire/throttle", bytesPerS=1, direction="out", version="Pulsar-CPP")
    receipts: list[object] = []
    producer.send_async(b"stored", lambda *result: receipts.append(result))
    stats = "/admin/v2/persistent/public/default/throttle-out/stats"
    eventually(lambda: faults.web.get(stats).json()["msgInCounter"] == 1)
    assert receipts == []
    faults.clear_all()
    eventually(lambda: receipts)


@pytest.mark.parametrize(
    ("command", "error", "raised"),
    [
        ("PARTITIONED_METADATA", "AuthorizationError", pulsar.AuthorizationError),
        ("LOOKUP", "AuthorizationError", pulsar.AuthorizationError),
        ("PRODUCER", "ProducerBusy", pulsar.ProducerBusy),
        ("SUBSCRIBE", "ConsumerBusy", pulsar.ConsumerBusy),
        ("GET_LAST_MESSAGE_ID", "MetadataError", pulsar.BrokerMetadataError),
        ("SEEK", "MetadataError", pulsar.BrokerMetadataError),
        ("UNSUBSCRIBE", "MetadataError", pulsar.BrokerMetadataError),
    ],
)
def test_a_request_gets_the_error_that_a_rule_names_and_is_not_carried_out(
    faults: Faults, client: pulsar.Client, command: str, error: str, raised: type[Exception]
) -> None:
    topic = f"error-{command}"

    def asked() -> None:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).close()
        consumer.get_last_message_id()
        consumer.seek(pulsar.MessageId.earliest)
        consumer.unsubscribe()

    rule = faults.set("wire/error", command=command, error=error, message="not today", count=1)
    with pytest.raises(raised):
        asked()
    assert faults.state(rule)["hits"] == 1
    stats = faults.web.request("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
    exists = command not in ("PARTITIONED_METADATA", "LOOKUP", "SUBSCRIBE")
    assert stats.status == (200 if exists else 404)
    if exists:
        assert list(stats.json()["subscriptions"]) == ["s"]
        assert stats.json()["publishers"] == []


def test_a_message_with_an_error_is_not_stored_and_is_sent_again(
    faults: Faults, client: pulsar.Client
) -> None:
    consumer = client.subscribe("error-send", "s")
    producer = client.create_producer("error-send")
    rule = faults.set("wire/error", command="SEND", error="ServiceNotReady", count=1)
    producer.send(b"again")
    refused = faults.set("wire/error", command="SEND", error="ChecksumError", count=1)
    with pytest.raises(pulsar.ChecksumError):
        producer.send(b"never")
    producer.send(b"last")
    assert [faults.state(one)["hits"] for one in (rule, refused)] == [1, 1]
    assert [receive(consumer).data() for _ in range(2)] == [b"again", b"last"]


def test_an_acknowledgement_with_an_error_has_no_effect(faults: Faults, client: pulsar.Client) -> None:
    consumer = client.subscribe("error-ack", "s")
    client.create_producer("error-ack").send(b"1")
    rule = faults.set("wire/error", command="ACK", error="MetadataError")
    consumer.acknowledge(receive(consumer))
    eventually(lambda: faults.state(rule)["hits"] == 1)
    consumer.close()
    assert receive(client.subscribe("error-ack", "s")).data() == b"1"
