"""The client commands beside terminals, pipes, signals and what is not a broker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import trio

from geminga.cli.client.client import open_client
from geminga.cli.client.errors import ClientError
from tests.e2e.child_process import running

GEMINGA = [sys.executable, "-P", "-m", "geminga"]
SECONDS_MAX = 30

Geminga = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(broker_url: str) -> Iterator[Start]:
    """Starts a command and leaves it running."""

    def call(
        *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "GEMINGA_URL": broker_url}
        command = [*GEMINGA, *arguments]
        return every.enter_context(
            running(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment)
        )

    with contextlib.ExitStack() as every:
        yield call


@pytest.mark.parametrize(
    "command",
    [
        ("produce", "--count", "20000", "--size", "10"),
        ("consume", "-s", "s", "--from", "earliest"),
        ("consume", "-s", "s", "--from", "earliest", "--json"),
    ],
)
def test_a_closed_output_ends_a_command_quietly(
    geminga: Geminga, start: Start, topic: str, command: tuple[str, ...]
) -> None:
    topic += "".join(command[-1:])
    geminga("produce", topic, "-m", "x", "-n", "500")
    process = start(command[0], topic, *command[1:])
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    geminga("produce", topic, "-m", "x", "-n", "500")
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(SECONDS_MAX) == 141


def test_help_into_a_closed_pipe() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([*GEMINGA, "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


def test_the_largest_message_is_sent_and_a_larger_one_is_refused_here(geminga: Geminga, topic: str) -> None:
    result = geminga("produce", topic, "--size", str(5 * 1024 * 1024))
    assert result.returncode == 0, result.stderr
    assert "1 message confirmed in" in result.stderr
    result = geminga("produce", topic, "--size", str(5 * 1024 * 1024 + 1))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "the broker takes at most 5242880" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["produce", "t", "-m", "x", "--delay", "-5s"], "expected a duration such as 250ms, 2s"),
        (["produce", "t", "-m", "x", "-r", "x"], "expected messages a second, 0 for no limit, not 'x'"),
        (["perf", "both", "-r", "-1"], "expected messages a second, 0 for no limit, not '-1'"),
    ],
)
def test_values_that_are_none(geminga: Geminga, arguments: list[str], expected: str) -> None:
    result = geminga(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr


def test_a_terminal_gets_no_control_characters_and_a_pipe_gets_the_bytes(
    geminga: Geminga, start: Start, topic: str
) -> None:
    text = "\x1b[2Jü\tx\x9b\x07\r."
    geminga("produce", topic, "-m", text)
    consume = ("consume", topic, "--from", "earliest", "-n", "1", "-s")
    assert start(*consume, "pipe").communicate()[0] == f"{text}\n".encode()
    for arguments, expected in (
        (("plain",), "\\x1b[2Jü\tx\\x9b\\x07\\x0d.\r\n".encode()),
        (("json", "--json"), '"\\u001b[2Jü\\tx\\u009b\\u0007\\r."'.encode()),
    ):
        ours, theirs = os.openpty()
        process = start(*consume, *arguments, stdout=theirs)
        assert process.wait(SECONDS_MAX) == 0
        assert expected in os.read(ours, 10_000)
        os.close(ours)
        os.close(theirs)


def test_an_interrupt_ends_with_the_summary(geminga: Geminga, start: Start, topic: str) -> None:
    geminga("produce", topic, "-m", "x")
    process = start("consume", topic, "-s", "s", "--from", "earliest")
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, err) == (130, b"1 message\n")


def test_an_interrupt_while_waiting_for_input(start: Start, topic: str) -> None:
    consumer = start("consume", topic, "-s", "s", "--from", "earliest", "-n", "2")
    process = start("produce", topic, "--stdin", "-q", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"one\r\ntwo\nth")
    process.stdin.flush()
    assert consumer.communicate(timeout=SECONDS_MAX)[0] == b"one\ntwo\n"
    process.send_signal(signal.SIGINT)
    assert re.fullmatch(rb"[12] messages? confirmed in .* s\n", process.stderr.read())
    assert process.wait(SECONDS_MAX) == 130


def test_perf_counts_only_what_its_own_run_published(geminga: Geminga, topic: str) -> None:
    geminga("consume", topic, "-s", "geminga-perf", "--type", "shared", "--timeout", "10ms")
    assert geminga("perf", "publish", topic, "-n", "50").returncode == 0
    geminga("produce", topic, "-m", "x")
    result = geminga("perf", "both", topic, "-n", "100", "--json")
    assert json.loads(result.stdout)["consume"]["messages"] == 100
    assert "passed over 51 messages" in result.stderr


def test_perf_fits_a_terminal_of_80_columns(geminga: Geminga, topic: str) -> None:
    result = geminga("perf", "both", topic, "--duration", "1500ms", "--batch", "50", "--size", "100")
    lines = [*result.stdout.splitlines(), *result.stderr.splitlines()]
    assert len(lines) >= 6
    assert max(map(len, lines)) <= 80, lines


def test_perf_without_a_broker_reports_the_error_alone(geminga: Geminga) -> None:
    result = geminga("perf", "both", "--url", "pulsar://127.0.0.1:1")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)


async def test_the_port_of_a_web_server_is_told_from_a_brokers() -> None:
    async with trio.open_nursery() as nursery:

        async def refuse(stream: trio.SocketStream) -> None:
            await stream.receive_some(1000)
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await stream.aclose()

        listeners = await nursery.start(trio.serve_tcp, refuse, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(5), pytest.raises(ClientError, match="looks like an HTTP port"):
            async with open_client(f"pulsar://127.0.0.1:{port}") as client:
                await client.partitions("t")
        nursery.cancel_scope.cancel()
