"""`geminga produce`, `consume`, `read` and `peek`, and pulsar-client's words for them, against a broker.

GEMINGA_TEST_URL names another broker, say a real Pulsar: everything here must pass there as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest

from geminga.cli.main import main

ORDER = """{"type":"record","name":"Order",
    "fields":[{"name":"id","type":"int"},{"name":"note","type":["null","string"]}]}"""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Done]


@pytest.fixture
def run(broker_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GEMINGA_URL", broker_url)

    def call(*arguments: str) -> Done:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(str(ended.code))
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture
def earliest(topic: str) -> tuple[str, ...]:
    return ("consume", topic, "-s", "s", "-p", "Earliest", "--timeout", "5s")


def test_pulsar_clients_words_print_what_pulsar_client_prints(run: Run, topic: str) -> None:
    sent = run(
        "pulsar-client", "--auth-params", "x", "produce", topic, "-m", "a,b", "-m", "c", "-k", "key",
        "-p", "k1=v1,k3=v3", "-p", "k2=v2", "-n", "1",
    )  # fmt: skip
    assert sent.code == 0, sent.err
    assert "3 messages successfully produced" in sent.out
    got = run("pulsar-client", "consume", "-s", "s", "-p", "Earliest", "-n", "3", "-t", "Exclusive", topic)
    assert got.code == 0, got.err
    assert got.lines[::2][:3] == ["----- got message -----"] * 3
    for line, content in zip(got.lines[1::2], "abc", strict=True):
        assert re.fullmatch(
            r"publishTime:\[\d{13}\], eventTime:\[0\], key:\[key\], "
            rf"properties:\[k1=v1, k2=v2, k3=v3\], content:{content}",
            line,
        )
    assert "3 messages successfully consumed" in got.lines[-1]


def test_pulsar_client_consumes_one_message_unless_told_otherwise(run: Run, topic: str) -> None:
    run("produce", topic, "-m", "a,b", "-m", "c")
    got = run("pulsar-client", "consume", topic, "-s", "s", "-p", "Earliest")
    assert [line.partition("content:")[2] for line in got.lines if "content:" in line] == ["a,b"]
    run("pulsar-client", "consume", topic, "-s", "s", "--hide-content")
    assert run("consume", topic, "-s", "s", "--timeout", "500ms").code == 3, "both were acknowledged"


def test_a_separator_cuts_messages_and_only_then(run: Run, topic: str, earliest: tuple[str, ...]) -> None:
    run("produce", topic, "-m", "a,b")
    run("produce", topic, "-m", "c;d;;", "-s", ";")
    assert run(*earliest, "-n", "3").lines == ["a,b", "c", "d"]


def test_all_that_a_message_can_carry(
    run: Run, topic: str, earliest: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "content"
    file.write_bytes(b"\xff\x00bytes")
    sent = run(
        "produce", topic, "-f", str(file), "--event-time", "2026-01-01T00:00Z",
        "--ordering-key", "o", "-k", "k",
        "--compression", "zlib", "--producer-name", f"{topic}-me", "-p", "a=b=c", "-r", "0", "-db", "-dr",
    )  # fmt: skip
    assert sent.code == 0, sent.err
    [line] = run(*earliest, "-n", "1", "--json").lines
    shown = json.loads(line)
    assert shown["event_time_ms"] == 1_767_225_600_000
    assert (shown["key"], shown["ordering_key"], shown["properties"]) == ("k", "o", {"a": "b=c"})
    assert shown["producer_name"] == f"{topic}-me"
    assert shown["payload_base64"] == "/wBieXRlcw=="
    hexed = run("read", topic, "--hex", "-mp").lines
    assert "key:k" in hexed[0]
    assert hexed[1] == "00000000 FF 00 62 79 74 65 73                            ..bytes"


def test_what_is_too_large_is_cut_into_chunks_and_put_together(
    run: Run, topic: str, earliest: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * 45_000)
    assert run("produce", topic, "-f", str(file)).code == 1
    assert run("produce", topic, "-f", str(file), "-c").code == 0
    shown = json.loads(run(*earliest, "-n", "1", "--json").out)
    assert len(shown["payload_base64"]) == 4 * 256 * 45_000 // 3
    assert run("consume", topic, "-s", "s", "--timeout", "500ms").code == 3, "all chunks were acknowledged"


def test_n_is_exact_within_a_batch_and_the_rest_comes_again(
    run: Run, topic: str, earliest: tuple[str, ...]
) -> None:
    sent = run("produce", topic, "-m", "a", "-m", "b", "-m", "c", "--batch", "3")
    assert len(set(sent.lines)) == 1, "one entry"
    assert run(*earliest, "-n", "2").lines == ["a", "b"]
    again = run(*earliest, "-n", "1").lines
    assert again in (["a"], ["c"]), "c, where the broker keeps acknowledgements of parts of a batch"


@pytest.mark.parametrize("count", [(), ("-n", "1")])
def test_nothing_within_the_time_is_no_success(run: Run, topic: str, count: tuple[str, ...]) -> None:
    got = run("consume", topic, "-s", "s", "--timeout", "100ms", *count)
    assert (got.code, got.out) == (3, "")
    assert got.err.startswith("0 messages; ")


def test_less_than_was_asked_for_is_no_success(run: Run, topic: str, earliest: tuple[str, ...]) -> None:
    run("produce", topic, "-m", "a")
    got = run(*earliest[:-1], "300ms", "-n", "2")
    assert (got.code, got.out) == (3, "a\n")
    assert run("read", topic).code == 0
    assert run("read", topic, "-n", "2").code == 3


def test_a_reader_ends_at_the_last_message_and_begins_where_it_is_told(run: Run, topic: str) -> None:
    ids = run("produce", topic, "-m", "a", "-m", "b", "-m", "c").lines
    assert run("read", topic).lines == ["a", "b", "c"]
    assert run("read", topic, "-m", ids[1]).lines == ["c"]
    assert run("read", topic, "-m", ids[1], "-i").lines == ["b", "c"]
    assert run("pulsar-client", "read", topic, "-m", "earliest", "-n", "2").lines[1].endswith("content:a")
    assert run("read", topic, "-m", "soon").code == 2


def test_values_are_shown_by_the_schema_and_sent_by_it(
    run: Run, topic: str, earliest: tuple[str, ...]
) -> None:
    sent = run(
        "produce",
        topic,
        "-vs",
        f"avro:{ORDER}",
        "-m",
        '{"id":1,"note":{"string":"x"}}',
        "-m",
        '{"id":2,"note":null}',
    )
    assert sent.code == 0, sent.err
    assert run("read", topic).lines == ['{"id": 1, "note": "x"}', '{"id": 2, "note": null}']
    got = run(
        "pulsar-client", "consume", topic, "-s", "s", "-p", "Earliest", "-n", "2", "-st", "auto_consume"
    )
    assert [line.partition("content:")[2] for line in got.lines[1:4:2]] == [
        "{note=x, id=1}",
        "{note=NULL, id=2}",
    ]
    shown = json.loads(run("peek", topic, "--json").out)
    assert (shown["schema"], shown["value"]) == ({"type": "AVRO", "version": 0}, {"id": 1, "note": "x"})
    wrong = run("produce", topic, "-vs", f"avro:{ORDER}", "-m", '{"id":"one"}')
    assert (wrong.code, wrong.err.count("\n")) == (1, 1)
    assert "int is expected" in wrong.err


@pytest.mark.parametrize("how", ["separated", "inline"])
def test_a_key_and_a_value_are_what_the_official_client_reads(
    run: Run, broker_url: str, topic: str, how: str
) -> None:
    topic += how
    sent = run("produce", topic, "-kvet", how, "-ks", "string", "-vs", "int32", "-kvk", "k", "-m", "7")
    assert sent.code == 0, sent.err
    assert run("read", topic).lines == ['{"key": "k", "value": 7}']
    got = run("pulsar-client", "read", topic, "-m", "earliest", "-st", "auto_consume")
    assert got.lines[1].endswith(
        "content:{key={value=k, type=class java.lang.String}, value={value=7, type=class java.lang.Integer}}"
    )


def test_what_the_official_client_packs_is_read(run: Run, broker_url: str, topic: str) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(broker_url, logger=logger)
    for kind in (pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD, pulsar.CompressionType.SNAPPY):
        producer = client.create_producer(topic, compression_type=kind, batching_enabled=False)
        producer.send(f"{kind.name} ".encode() * 100)
        producer.close()
    client.close()
    assert [line.split()[-1] for line in run("read", topic).lines] == ["LZ4", "ZSTD", "SNAPPY"]


def test_a_pattern_takes_all_topics_that_match(run: Run, topic: str) -> None:
    for name in ("one", "two", "other"):
        run("produce", f"{topic}-{name}", "-m", name)
    got = run(
        "consume", f"{topic}-(one|t.*)", "--regex", "-s", "s", "-p", "Earliest", "-n", "2", "--timeout", "5s"
    )
    assert sorted(got.lines) == ["one", "two"]
    assert "regular expression" in run("consume", "(", "--regex", "-s", "s").err


def test_peek_shows_what_a_subscription_has_not_acknowledged_and_moves_nothing(
    run: Run, topic: str, earliest: tuple[str, ...]
) -> None:
    run("produce", topic, "-m", "a", "-m", "b", "-m", "c", "-k", "key", "-p", "colour=red", "--delay", "0s")
    run(*earliest, "-n", "1")
    for _ in range(2):
        assert [
            json.loads(line)["payload"] for line in run("peek", topic, "-s", "s", "-n", "5", "--json").lines
        ] == ["b", "c"]
    shown = run("peek", topic, "-n", "1")
    assert shown.code == 0
    assert re.match(r"1\. \d+:\d+  1 B  published ", shown.out)
    for expected in ("key              key", "property colour  red", "deliver at       ", "    a\n"):
        assert expected in shown.out
    missing = run("peek", topic, "-s", "t")
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert "has no subscription 't'; it has s" in missing.err
    assert run("peek", f"{topic}-nothing").code != 0


def test_either_address_of_a_broker_will_do(run: Run, web_url: str, topic: str) -> None:
    assert run("produce", topic, "-m", "a", "--url", web_url).code == 0
    assert run("read", topic, "--url", web_url).lines == ["a"]
    assert run("peek", topic, "--url", web_url, "--json").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["pulsar-client", "produse"], 2, "did you mean produce?"),
        (["pulsar-client", "--proxy-url", "x", "produce"], 2, "not through a proxy"),
        (["produce", "t", "-m", "x", "-kvk", "k"], 1, "needs --key-value-encoding-type"),
        (["produce", "t", "-m", "x", "-vs", "xml"], 1, "unknown schema 'xml'; known are bytes, string"),
        (["produce", "t", "-m", "x", "-ekn", "k"], 2, "does not encrypt"),
        (["produce", "t", "-f", "/nowhere/at/all"], 1, "/nowhere/at/all: No such file"),
        (["produce", "t", "-m", "x", "--deliver-at", "noon"], 2, "expected a time such as 2026-12-24T18:00"),
        (["consume", "t", "-s", "s", "-p", "Middle"], 2, "(choose from earliest, latest)"),
        (["consume", "t", "-s", "s", "-t", "sharde"], 2, "key_shared, shared); did you mean shared?"),
        (["delayed", "histgram", "t", "-s", "s"], 2, "did you mean histogram?"),
        (["produce", "t", "-m", "x", "--compression", "zst"], 2, "did you mean zstd?"),
        (["consume", "t", "-s", "s", "--time-out", "1s"], 2, "did you mean --timeout?"),
    ],
)  # fmt: skip
def test_mistakes_say_what_to_do(run: Run, arguments: list[str], code: int, expected: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (code, "")
    assert expected in done.err
