"""What a person tries first: words in the order that other tools have, a wrong guess that is answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geminga.cli.main import main
from tests.cli.conftest import Geminga

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture(autouse=True)
def _broker(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINGA_URL", broker_url)


def test_a_message_without_a_flag_and_lines_with_keys(
    topic: str, geminga: Geminga, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", topic, "hello", "-q"]) == 0
    assert geminga("produce", topic, "--stdin", "--key-separator", ":", text="a:1\nb:2:3\n").returncode == 0
    capfd.readouterr()
    assert main(["read", topic, "--json"]) == 0
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one.get("key"), one["payload"]) for one in shown] == [(None, "hello"), ("a", "1"), ("b", "2:3")]
    told = geminga("produce", topic, "--stdin", "--key-separator", ":", text="no key\n")
    assert (told.returncode, "a line has no key: 'no key' without ':'" in told.stderr) == (1, True)


def test_the_third_message_and_one_by_its_id(topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", topic, "-m", "one", "-m", "two", "-m", "three"]) == 0
    ids = capfd.readouterr().out.split()
    assert main(["peek", topic, "--skip", "2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["payload"] == "three"
    assert main(["peek", topic, ids[1], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["payload"] == "two"
    assert main(["peek", topic, "--skip", "3"]) == 3
    assert main(["peek", topic, "999999:0"]) == 3  # at once, not after the time that it would wait


def test_an_id_that_does_not_exist_shows_no_other_message(
    topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", topic, "-m", "one", "-m", "two", "-m", "three"]) == 0
    first, second, _ = capfd.readouterr().out.split()
    assert main(["peek", topic, "0:0", "-n", "2"]) == 3
    told = capfd.readouterr()
    assert (told.out, f"{topic} has no message with the id 0:0\n" in told.err) == ("", True)
    assert main(["peek", topic, "--from", "0:0", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["payload"] == "one"
    assert main(["peek", topic, second, "-n", "2", "--json"]) == 0
    shown = [json.loads(line)["payload"] for line in capfd.readouterr().out.splitlines()]
    assert shown == ["two", "three"]
    assert main(["consume", topic, "-s", "s", "--from", "earliest", "-n", "1"]) == 0
    capfd.readouterr()
    assert main(["peek", topic, first, "-s", "s"]) == 3
    told = capfd.readouterr()
    ids = ":".join(first.split(":")[:2])
    assert (told.out, f"no message with the id {ids} that s has not acknowledged" in told.err) == ("", True)
    assert main(["peek", topic, second, "-s", "s", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["payload"] == "two"


def test_a_schema_out_of_a_file(topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    assert main(["produce", topic, '{"id": 7}', "--schema", f"avro:@{file}", "-q"]) == 0
    assert main(["produce", topic, '{"id": 7}', "--schema", f"avro:@{file}.gone"]) == 1
    assert capfd.readouterr().err.endswith(f"{file}.gone: No such file or directory\n")
    assert main(["peek", topic, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["value"] == {"id": 7}


def test_what_is_missing_is_named_with_the_way_on(topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", topic]) == 2
    assert capfd.readouterr().err.endswith(f"Without one: geminga read {topic}\n")
    assert main(["produce", topic]) == 2
    assert "--stdin (a message for each line)" in capfd.readouterr().err
    assert main(["consume", topic, "-s", "new", "--timeout", "1ms"]) == 3
    assert "with --from earliest at the start" in capfd.readouterr().err


def test_the_only_subscription_need_not_be_named(topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "create", topic]) == 0
    assert main(["delayed", "list", topic]) == 1
    assert "the topic has none" in capfd.readouterr().err
    assert main(["topics", "create-subscription", topic, "-s", "one"]) == 0
    assert main(["produce", topic, "later", "--delay", "1h", "-q"]) == 0
    capfd.readouterr()
    assert main(["delayed", "summary", topic, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)
    assert main(["topics", "create-subscription", topic, "-s", "two"]) == 0
    assert main(["delayed", "list", topic]) == 1
    assert "the topic has one, two" in capfd.readouterr().err
