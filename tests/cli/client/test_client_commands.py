"""`geminga produce`, `consume` and `perf` against a running broker."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pulsar
import pytest
import trio

from geminga.cli.client.client import open_client
from geminga.cli.client.connection import parse_url
from geminga.cli.client.errors import ClientError, Refused

Geminga = Callable[..., subprocess.CompletedProcess[str]]


def test_what_was_produced_is_consumed(geminga: Geminga, topic: str) -> None:
    produced = geminga("produce", topic, "-m", "one", "-m", "zwei ü", "--count", "2")
    assert produced.returncode == 0, produced.stderr
    ids = produced.stdout.split()
    assert len(ids) == 4
    assert all(re.fullmatch(r"\d+:\d+", text) for text in ids)
    assert "4 messages confirmed" in produced.stderr
    consumed = geminga("consume", topic, "-s", "s", "--from", "earliest", "-n", "4")
    assert consumed.returncode == 0, consumed.stderr
    assert consumed.stdout.splitlines() == ["one", "zwei ü", "one", "zwei ü"]


def test_json_shows_all_that_is_known(geminga: Geminga, topic: str) -> None:
    [message_id] = geminga(
        "produce", topic, "-m", "text", "-k", "key", "-p", "a=b", "-p", "c=d=e"
    ).stdout.split()
    arguments = ("consume", topic, "-s", "s", "--from", "earliest", "-n", "1", "--json")
    [line] = geminga(*arguments).stdout.splitlines()
    shown = json.loads(line)
    assert shown["id"] == message_id
    assert shown["payload"] == "text"
    assert shown["key"] == "key"
    assert shown["properties"] == {"a": "b", "c": "d=e"}
    assert shown["redelivery_count"] == 0
    assert f"{shown['ledger_id']}:{shown['entry_id']}" == message_id
    assert "deliver_at_ms" not in shown


def test_what_was_acknowledged_does_not_come_again_and_what_was_not_does(
    geminga: Geminga, topic: str
) -> None:
    geminga("produce", topic, "-m", "x", "-m", "y")
    peek = ("consume", topic, "-s", "s", "--from", "earliest", "-n", "2")
    assert geminga(*peek, "--no-ack").stdout.splitlines() == ["x", "y"]
    assert geminga(*peek).stdout.splitlines() == ["x", "y"]
    assert geminga(*peek, "--timeout", "300ms").stdout == ""


def test_a_delay_is_kept(geminga: Geminga, topic: str) -> None:
    arguments = ("consume", topic, "-s", "s", "--type", "shared", "--from", "earliest", "-n", "1", "--json")
    geminga("consume", topic, "-s", "s", "--type", "shared", "--timeout", "100ms")
    geminga("produce", topic, "-m", "later", "--delay", "1h")
    assert geminga(*arguments, "--timeout", "500ms").stdout == ""
    shown = json.loads(geminga(*arguments[:4], "--from", "earliest", "-n", "1", "--json").stdout)
    assert shown["deliver_at_ms"] - shown["publish_time_ms"] in range(3_599_000, 3_601_000)


def test_lines_of_standard_input_are_messages(geminga: Geminga, topic: str) -> None:
    produced = geminga("produce", topic, "--stdin", "--quiet", text="a\nb\n\nc")
    assert produced.stdout == ""
    assert geminga("consume", topic, "-s", "s", "--from", "earliest", "-n", "4").stdout == "a\nb\n\nc\n"


def test_batched_compressed_and_partitioned_messages_of_the_official_client(
    geminga: Geminga, broker_url: str, topic: str
) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(broker_url, logger=logger)
    producer = client.create_producer(
        topic, compression_type=pulsar.CompressionType.ZLib, batching_max_publish_delay_ms=200
    )
    for number in range(3):
        producer.send_async(f"m{number}".encode(), lambda *_: None)
    producer.flush()
    producer.close()
    raw = client.create_producer(topic, compression_type=pulsar.CompressionType.LZ4, batching_enabled=False)
    raw.send(b"x" * 1000)
    client.close()
    consumed = geminga("consume", topic, "-s", "s", "--from", "earliest", "-n", "4")
    lines = consumed.stdout.splitlines()
    assert lines[:3] == ["m0", "m1", "m2"]
    assert lines[3] == "x" * 1000


@pytest.mark.parametrize("batch", ["1", "10"])
def test_perf_counts_every_message_and_its_latency(geminga: Geminga, topic: str, batch: str) -> None:
    result = geminga("perf", "both", topic + batch, "-n", "500", "--batch", batch, "--size", "100", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    for side in ("publish", "consume"):
        assert summary[side]["messages"] == 500
        assert summary[side]["bytes"] == 50_000
        latency = summary[side]["latency_ms"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"] < 30_000


def test_perf_keeps_a_rate_and_reports_while_it_runs(geminga: Geminga, topic: str) -> None:
    result = geminga("perf", "produce", topic, "--rate", "200", "--duration", "1500ms", "--json")
    summary = json.loads(result.stdout)["publish"]
    assert 240 <= summary["messages"] <= 320
    assert re.search(r"publish +\d+ msg/s .* p50", result.stderr)
    alone = geminga("perf", "consume", topic, "-n", "200", "--duration", "20s", "--json")
    assert json.loads(alone.stdout)["consume"]["messages"] >= 200


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["produce", "t"], 2, "give one of --message TEXT, --file FILE, --stdin"),
        (["produce", "t", "-m", "x", "--delay", "soon"], 2, "expected a duration"),
        (["produce", "t", "-m", "x", "-p", "novalue"], 2, "expected key=value"),
        (["produce", "t", "-m", "x", "--coutn", "2"], 2, "did you mean --count?"),
        (["produce", "t", "-m", "x", "--at", "noon"], 2, "unknown flag --at (did you mean --deliver-at?)"),
        (["consume", "t"], 2, "give the name of a subscription with -s"),
        (["consume", "t", "-s", "s", "--type", "any"], 2, "invalid choice"),
        (["perf", "fly"], 2, "invalid choice"),
        (["produce", "t", "-m", "x", "--url", "http://127.0.0.1:1"], 1, "no broker answers there; start one"),
        (["produce", "t", "-m", "x", "--url", "pulsar://127.0.0.1:1"], 1, "start one: geminga standalone"),
        (["produce", "no/such/namespace/topic", "-m", "x"], 1, "refused"),
        (["consume", "public/nope/t", "-s", "s"], 1, "refused"),
    ],
)
def test_mistakes_are_one_line(geminga: Geminga, arguments: list[str], code: int, expected: str) -> None:
    result = geminga(*arguments)
    assert result.returncode == code, result.stderr
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


async def test_a_broker_that_goes_away_is_an_error_not_a_wait() -> None:
    async with trio.open_nursery() as nursery:

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.receive_some(10)
            await stream.aclose()

        listeners = await nursery.start(trio.serve_tcp, hang_up, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(5), pytest.raises(ClientError):
            await _ask(f"pulsar://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def _ask(url: str) -> None:
    async with open_client(url) as client:
        await client.partitions("t")


async def test_a_refusal_carries_the_brokers_code(broker_url: str, topic: str) -> None:
    with trio.fail_after(10):
        async with open_client(broker_url) as client:
            await client.consumer(topic, "s")
            with pytest.raises(Refused) as caught:
                await client.consumer(topic, "s")
    assert caught.value.code == 5, "an exclusive subscription takes one consumer"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://h:1", ("h", 1)),
        ("pulsar://h", ("h", 6650)),
        ("h:1", ("h", 1)),
        ("pulsar://[::1]:1", ("::1", 1)),
    ],
)
def test_addresses(url: str, expected: tuple[str, int]) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url", ["http://h", "pulsar://", "pulsar://h:x", "pulsar+ssl://h:1", "pulsar://[::1"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ClientError):
        parse_url(url)
