"""`pulsar-perf` with the flags of the real one's help, against a broker; and which of ours they become."""

from __future__ import annotations

import json
import re
from urllib.request import urlopen

import pytest

from geminga.cli.arguments.parser import Parser
from geminga.cli.main import main
from geminga.cli.perf.pulsar_perf import COMMANDS, batch_messages, produce_parser

MESSAGES = 200


@pytest.fixture(autouse=True)
def _broker(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINGA_URL", broker_url)


def count_of(out: str, what: str) -> int:
    found = re.match(rf"{what}: (\d+) messages?, \d+ bytes in [\d.]+ s, ", out)
    assert found is not None, out
    return int(found[1])


def test_what_one_publishes_the_others_receive(
    topic: str, broker_url: str, web_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    produce = ["-u", broker_url, "-r", "2000", "-s", "64", "-o", "100", "-b", "5", "-bm", "50", "-time", "30"]
    assert main(["pulsar-perf", "produce", *produce, "-m", str(MESSAGES), topic]) == 0
    assert count_of(capsys.readouterr().out, "publish") == MESSAGES
    with urlopen(f"{web_url}/admin/v2/persistent/public/default/{topic}/internalStats") as answer:
        assert (
            json.load(answer)["numberOfEntries"] == MESSAGES // 10
        )  # 5 ms at 2,000 a second are 10 messages

    consume = ["-ss", "s", "-st", "Shared", "-sp", "Earliest", "-q", "50", "-time", "30"]
    assert main(["pulsar-perf", "consume", *consume, "-m", str(MESSAGES), topic]) == 0
    assert count_of(capsys.readouterr().out, "consume") == MESSAGES

    assert main(["pulsar-perf", "read", "-u", web_url, "-m", "earliest", "-n", str(MESSAGES), topic]) == 0
    assert count_of(capsys.readouterr().out, "consume") == MESSAGES
    with urlopen(f"{web_url}/admin/v2/persistent/public/default/{topic}/stats") as answer:
        found = json.load(answer)["subscriptions"]
    assert [name for name, one in found.items() if one["isDurable"]] == ["s"]  # a reader's goes with it


def test_a_partitioned_topic_is_taken_whole(
    topic: str, web_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", "create-partitioned-topic", topic, "-p", "3", "--url", web_url]) == 0
    assert main(["pulsar-perf", "produce", topic, "-m", "30", "-r", "0", "-db"]) == 0
    assert main(["pulsar-perf", "consume", topic, "-sp", "Earliest", "-m", "30"]) == 0
    assert count_of(capsys.readouterr().out.splitlines()[-2], "consume") == 30


def test_to_receive_nothing_is_no_success_but_for_pulsar_perf(topic: str) -> None:
    assert main(["perf", "consume", topic, "--duration", "10ms"]) == 3
    assert main(["pulsar-perf", "consume", topic, "--test-duration", "1", "-i", "0"]) == 0


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([], 1),  # 100 a second, 1 ms
        (["-r", "6000", "-b", "1", "-bm", "1000"], 6),
        (["-r", "1000", "-b", "100"], 100),
        (["-r", "1000", "-b", "100", "-bm", "20"], 20),
        (["-r", "0"], 1000),
        (["-r", "6000", "-db"], 1),
    ],
)
def test_an_entry_has_the_messages_of_the_window(given: list[str], messages: int) -> None:
    assert batch_messages(produce_parser(Parser).parse_strictly([*given, "t"])) == messages


def test_flags_become_those_of_perf(capsys: pytest.CaptureFixture[str]) -> None:
    produce = ["-r", "50", "-s", "10", "-m", "7", "-u", "pulsar://h:1", "-time", "3", "t"]
    assert " ".join(COMMANDS["produce"](Parser, produce)) == (
        "produce t --duration 3s --count 7 --url pulsar://h:1 --rate 50.0 --size 10 --batch 1 --pending 1000"
    )
    consume = ["t", "-ss", "s", "-st", "Shared", "-sp", "Earliest"]
    assert " ".join(COMMANDS["consume"](Parser, consume)) == (
        "consume t --duration 3650d --count 0 --subscription s --type Shared --queue 1000 --from earliest"
    )
    read = ["t", "-m", "3:7", "-n", "5", "-time", "2"]
    assert " ".join(COMMANDS["read"](Parser, read)) == (
        "read t --duration 2s --count 5 --queue 1000 --from 3:7"
    )
    assert capsys.readouterr().err == ""
    COMMANDS["produce"](Parser, ["t", "-pn", "p", "-i", "5", "-threads", "1", "-mk", "random", "-ef"])
    told = "--exit-on-failure, --message-key-generation-mode, --num-test-threads, --producer-name, "
    assert capsys.readouterr().err == f"pulsar-perf: without effect here: {told}--stats-interval-seconds\n"


def test_several_topics_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["pulsar-perf", "produce", "-t", "2", "t"])
    assert left.value.code == 2
    assert "one topic at a time" in capsys.readouterr().err
