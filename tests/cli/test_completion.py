"""What shells are told to complete, and that bash does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from geminga.cli import completion
from geminga.cli.main import COMMANDS, MODULES, main


def words(*before: str, current: str = "") -> list[str]:
    found = completion.complete(before, current, COMMANDS, MODULES)
    return [word for word, _ in found if word.startswith(current)]


def test_commands_verbs_flags_and_values() -> None:
    assert words(current="pro") == ["produce"]
    assert "unsubscribe" in words("topics", current="un")
    assert words("delayed", current="hi") == ["histogram"]
    assert "--width" in words("delayed", "histogram", "t", current="--w")
    assert "--subscription-position" in words("consume", "t", current="--sub")
    assert words("consume", "t", "-t", current="key") == ["key_shared"]
    assert words("consume", "t", "-p") == ["earliest", "latest"]
    assert words("completion") == ["bash", "fish", "zsh"]
    assert words("produce", "t", "--compression", current="z") == ["zlib", "zstd"]
    assert words("no-such-command") == []
    assert "--encryption-key-name" not in words("produce", "t", current="--enc")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "pipeline"])
def test_every_command_can_be_asked(command: str) -> None:
    assert words(command, current="-") or words(command)


def test_topics_and_subscriptions_are_those_of_the_broker(
    broker_url: str,
    web_url: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GEMINGA_URL", broker_url)
    monkeypatch.setenv("GEMINGA_WEB_URL", web_url)
    main(["produce", topic, "-m", "x"])
    main(["consume", topic, "-s", "mine", "-p", "earliest", "-n", "1"])
    capfd.readouterr()
    assert topic in words("consume", current=topic[:8])
    assert topic in words("topics", "stats")
    assert words("consume", topic, "-s") == ["mine"]
    monkeypatch.setenv("GEMINGA_WEB_URL", "http://127.0.0.1:1")
    assert words("consume") == [], "no broker is no error"


def test_bash_completes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    assert main(["completion", "bash"]) == 0
    program = tmp_path / "geminga"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m geminga "$@"\n')
    program.chmod(0o755)
    script = f"""PATH={tmp_path}:$PATH
{capfd.readouterr().out}
COMP_WORDS=(geminga topics unsub); COMP_CWORD=2; _geminga; echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "unsubscribe\n", done.stderr


@pytest.mark.parametrize(
    ("given", "at", "completed"),
    [
        (("geminga", "consume", "persistent", ":", "//public/default/{}"), 4, "//public/default/{}"),
        (("geminga", "consume", "persistent", ":", "//public/default/{}", "-t", "key"), 6, "key_shared"),
        (("geminga", "consume", "public/default/{}"), 2, "public/default/{}"),
        (("geminga", "topics", "stats", "persistent://public/default/{}"), 3, "//public/default/{}"),
    ],
)
def test_bash_completes_behind_a_colon(
    given: tuple[str, ...],
    at: int,
    completed: str,
    tmp_path: Path,
    broker_url: str,
    web_url: str,
    topic: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Bash gives the function `persistent`, `:` and the rest as three words, and replaces the last one."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    main(["produce", topic, "-m", "x", "--url", broker_url])
    assert main(["completion", "bash"]) == 0
    program = tmp_path / "geminga"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m geminga "$@"\n')
    program.chmod(0o755)
    words = " ".join(f"'{word.replace('{}', topic[:-2])}'" for word in given)
    script = f"""PATH={tmp_path}:$PATH
{capfd.readouterr().out.partition(chr(10))[2]}
COMP_WORDS=({words}); COMP_CWORD={at}; _geminga; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "GEMINGA_WEB_URL": web_url}
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert completed.replace("{}", topic) in done.stdout.splitlines(), (done.stdout, done.stderr)
