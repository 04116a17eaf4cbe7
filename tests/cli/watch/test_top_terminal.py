"""`geminga top` in a terminal of its own: it shows topics, and leaves the terminal as it found it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from geminga.cli.watch.terminal import ENTER, LEAVE

SECONDS_MAX = 30
OUTPUT_MAX = 20_000
"""Characters: several screens. What is not among them does not come."""


class Screen:
    """A pseudo-terminal with a program in it."""

    def __init__(self, *arguments: str) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = self.attributes()
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "geminga", *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
        )

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, *expected: str) -> None:
        """Any of them."""
        # Not `select.select`, which takes no descriptor above 1023.
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        while not any(text in self.output for text in expected):
            assert poll.poll(SECONDS_MAX * 1000), f"{expected!r} is not in {self.output!r}"
            assert len(self.output) < OUTPUT_MAX, f"{expected!r} is not in {self.output!r}"
            self.output += os.read(self._master, 65536).decode(errors="replace")

    def end(self) -> int:
        """Wait for the program; its exit code."""
        self.wait_for(LEAVE)
        return self.process.wait(SECONDS_MAX)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def screen(web_url: str, geminga: Any, topic: str) -> Iterator[Screen]:
    geminga("produce", topic, "-m", "a")
    made = Screen("top", "--url", web_url, "--sort", "name")
    try:
        made.wait_for(ENTER)
        made.wait_for("CONSUMERS")
        assert made.attributes() != made.before
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("how", "code"),
    [("q", 0), ("\x03", 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)],
)
def test_however_it_ends_the_terminal_is_as_it_was(
    screen: Screen, how: str | signal.Signals, code: int
) -> None:
    if isinstance(how, signal.Signals):
        screen.process.send_signal(how)
    elif how == "\x03":
        # What the terminal makes of it in a session with a terminal.
        screen.process.send_signal(signal.SIGINT)
    else:
        screen.type("\r")  # inside the first topic, which may be another test's
        screen.wait_for("no subscriptions", "SUBSCRIPTION")
        screen.type(how)
    assert screen.end() == code
    assert screen.attributes() == screen.before
    assert screen.output.rstrip().endswith(LEAVE)
    assert "Traceback" not in screen.output


def test_in_a_pipe_it_prints_one_plain_table(geminga: Any, web_url: str, topic: str) -> None:
    geminga("produce", topic, "-m", "a")
    plain = geminga("top", "--url", web_url)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.splitlines()[0].split()[:3] == ["TOPIC", "PARTS", "IN/s"]
    assert f"\n{topic} " in plain.stdout
    assert "\x1b" not in plain.stdout
    rows = json.loads(geminga("top", "--url", web_url, "--json").stdout)
    assert f"persistent://public/default/{topic}" in [row["topic"] for row in rows]
    inside = geminga("top", topic, "--url", web_url)
    assert "no subscriptions" in inside.stdout
    gone = geminga("top", "--url", "http://127.0.0.1:1")
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert "start one: geminga standalone" in gone.stderr
