"""What a mistyped word, or a word of another tool, is answered with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geminga.cli.arguments.guesses import COMMANDS, VERBS
from geminga.cli.main import COMMANDS as OWN
from geminga.cli.main import main


def failed(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    try:
        ended = main(arguments)
    except SystemExit as left:
        ended = int(left.code or 0)
    out, err = capfd.readouterr()
    assert (ended, out) == (code, "")
    return err.splitlines()[0]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("start", "'geminga standalone'"),
        ("pub", "'geminga produce'"),
        ("sub", "'geminga consume'"),
        ("stanalone", "standalone"),
        ("topic", "topics"),
    ],
)
def test_a_command_that_is_none(given: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert f"Did you mean {meant}?" in failed(capfd, given, code=2)


def test_what_no_command_does_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert "'kill PID' with the process that 'geminga status' names" in failed(capfd, "stop", code=2)
    assert "curl -s http://127.0.0.1:8080/metrics | grep TOPIC" in failed(capfd, "metrics", code=2)


@pytest.mark.parametrize(
    ("group", "given", "meant"),
    [
        ("topics", "ls", "list"),
        ("topics", "skip-all", "clear-backlog"),
        ("subscriptions", "reset", "seek"),
        ("tenants", "add", "create"),
        ("namespaces", "set-ttl", "set-message-ttl"),
    ],
)
def test_a_verb_that_is_none(group: str, given: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert f"Did you mean {meant}?" in failed(capfd, group, given, code=2)


def test_no_word_that_is_ours_is_explained_away() -> None:
    assert not set(COMMANDS) & set(OWN)
    assert not {"list", "delete", "create", "stats", "skip"} & set(VERBS)


def test_a_flag_of_another_verb_names_that_verb(capfd: pytest.CaptureFixture[str]) -> None:
    told = failed(capfd, "topics", "create", "t", "--partitions", "3", code=2)
    assert "unknown flag --partitions ('geminga topics create-partitioned-topic' takes it)" in told


def test_names_that_are_not_there(
    topic: str, web_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINGA_WEB_URL", web_url)
    whole = f"persistent://public/default/{topic}"
    assert main(["topics", "create", topic]) == 0
    assert main(["topics", "create-subscription", topic, "-s", "billing"]) == 0
    wrong = topic.replace("names", "nmaes")
    assert failed(capfd, "topics", "stats", wrong).endswith(f"not found; did you mean {whole}?")
    assert failed(capfd, "peek", wrong, "--url", web_url).endswith(f"not exist; did you mean {whole}?")
    assert failed(capfd, "read", wrong, "--url", web_url).endswith(f"not exist; did you mean {whole}?")
    assert failed(capfd, "topics", "skip", topic, "-s", "biling", "-n", "1").endswith("did you mean billing?")
    assert failed(capfd, "topics", "skip", topic, "-s", "x", "-n", "1").endswith("; it has billing")
    for verb in (("summary",), ("why", "1:1"), ("verify",)):
        action = ("delayed", verb[0], topic, *verb[1:])
        assert failed(capfd, *action, "-s", "biling").endswith("; did you mean billing?")
        assert failed(capfd, *action, "-s", "zebra").endswith("; it has billing")
    assert failed(capfd, "topics", "list", "public/defualt").endswith("did you mean public/default?")
    assert failed(capfd, "tenants", "get", "pubilc").endswith("did you mean public?")
    # The common beginning of all names makes none of them near.
    for words in (("topics", "stats", "zebra"), ("read", "zebra", "--url", web_url)):
        assert "did you mean" not in failed(capfd, *words)
    assert "did you mean" not in failed(capfd, "topics", "list", "public/zebra")
    # pulsar-admin says what it always said.
    assert main(["pulsar-admin", "topics", "stats", wrong]) == 1
    assert "did you mean" not in capfd.readouterr().err


def test_a_setting_that_is_read_at_the_start(
    web_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINGA_WEB_URL", web_url)
    update = ("brokers", "update-dynamic-config", "--value", "1", "--config")
    told = failed(capfd, *update, "maxUnackedMessagesPerConsumer")
    assert told.endswith("is read at the start: geminga standalone --set maxUnackedMessagesPerConsumer=...")
    told = failed(capfd, *update, "dispatchThrottlingRateInMgs")
    assert told.endswith("did you mean dispatchThrottlingRateInMsg?")


def test_the_binary_port_as_an_http_address(broker_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = broker_url.replace("pulsar://", "http://")
    assert failed(capfd, "tenants", "list", "--url", wrong).endswith(f"write {broker_url}")


def test_lists_without_a_subject_are_of_all(
    topic: str, web_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINGA_WEB_URL", web_url)
    assert main(["topics", "create-partitioned-topic", topic, "-p", "3"]) == 0
    capfd.readouterr()
    assert main(["topics", "list"]) == 0
    assert f"persistent://public/default/{topic}-partition-2" in capfd.readouterr().out.splitlines()
    assert main(["namespaces", "list"]) == 0
    assert "public/default" in capfd.readouterr().out.splitlines()
    # A topic that is not loaded has its partitions as well.
    assert main(["topics", "list", "public/default", "--json"]) == 0
    found = {row["topic"]: row for row in json.loads(capfd.readouterr().out)}
    assert found[f"persistent://public/default/{topic}"]["partitions"] == 3


def test_a_partitioned_topic_is_taken_whole(
    topic: str, web_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINGA_WEB_URL", web_url)
    for arguments in (
        ["topics", "create-partitioned-topic", topic, "-p", "3"],
        ["topics", "create-subscription", topic, "-s", "a"],
        ["produce", topic, "--size", "10", "-n", "9", "-q", "--url", web_url],
        ["topics", "clear-backlog", topic, "-s", "a"],
        ["topics", "reset-cursor", topic, "-s", "a", "-m", "earliest"],
    ):
        assert main(arguments) == 0
    capfd.readouterr()

    def answer(*arguments: str) -> dict[str, Any]:
        assert main(arguments) == 0
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    parts = {f"persistent://public/default/{topic}-partition-{number}" for number in range(3)}
    stats = answer("topics", "stats", topic)
    assert (stats["msgInCounter"], stats["subscriptions"]["a"]["msgBacklog"]) == (9, 9)
    assert set(answer("topics", "stats-internal", topic)["partitions"]) == parts
    assert set(answer("topics", "last-message-id", topic)) == parts
    assert sum(one["entries"] for one in answer("topics", "analyze-backlog", topic, "-s", "a").values()) == 9
    assert failed(capfd, "topics", "skip", topic, "-s", "a", "-n", "1").endswith(f"{topic}-partition-0")
    assert main(["pulsar-admin", "topics", "stats", topic]) == 1  # as the real one
    capfd.readouterr()
    assert main(["topics", "delete", topic, "--force"]) == 0
    assert failed(capfd, "topics", "get-partitioned-topic-metadata", topic)
