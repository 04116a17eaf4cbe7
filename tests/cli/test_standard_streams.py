"""A broker serves and ends in order though its standard streams are closed, full, unread or have lost their
reader; and which signals end it so.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from geminga.cli.arguments.parser import EXIT_OUTPUT_CLOSED
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.child_process import running

SECONDS_MAX = 30
BAD_FRAME = b"\x0f\xff\xff\xff" + b"x" * 20


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


def command(tmp_path: Path, ports: tuple[int, int], redirection: str = "") -> list[str]:
    """Ports are chosen here: some of these brokers cannot say theirs."""
    geminga = [sys.executable, "-P", "-m", "geminga", "standalone", "--data-dir", str(tmp_path / "data")]
    geminga += ["--port", str(ports[0]), "--web-port", str(ports[1])]
    return ["/bin/sh", "-c", f"exec {shlex.join(geminga)} {redirection}"]


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS_MAX) as response:
        return str(response.read().decode())


def serves(process: subprocess.Popen[bytes], port: int) -> bool:
    """Once it answers; False if it ends before."""
    while process.poll() is None:
        try:
            return get(port, "/admin/v2/brokers/ready") == "ok"
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
    return False


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "redirection", [">&- 2>/dev/null", ">/dev/null 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"]
)
def test_closed_and_full_streams(tmp_path: Path, redirection: str) -> None:
    ports = free_ports()
    with running(command(tmp_path, ports, redirection)) as process:
        assert serves(process, ports[1])
        if "&-" in redirection and os.path.isdir("/proc"):
            # Else a file of the broker would stand where libraries print.
            for descriptor in (1, 2):
                assert os.readlink(f"/proc/{process.pid}/fd/{descriptor}") == os.devnull
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0


def test_streams_without_a_reader(tmp_path: Path) -> None:
    ports = free_ports()
    with running(command(tmp_path, ports), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        assert serves(process, ports[1])
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0


def test_a_log_that_nobody_reads_holds_up_nobody_and_is_counted(tmp_path: Path) -> None:
    """At level debug nothing is left out, so these clients are worth 20 pipes of lines."""
    ports = free_ports()
    with running(
        command(tmp_path, ports, "--log-level debug"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        dropped = 0.0
        while not dropped:
            for _ in range(500):
                with socket.create_connection(("127.0.0.1", ports[0]), SECONDS_MAX) as client:
                    client.sendall(BAD_FRAME)
                    while client.recv(1000):
                        pass
            [line] = [x for x in get(ports[1], "/metrics").splitlines() if x.startswith("geminga_log_d")]
            dropped = float(line.split()[1])
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0


def test_many_bad_connections_are_two_lines(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for _ in range(300):
            with socket.create_connection(broker.endpoints.binary_address, SECONDS_MAX) as client:
                client.sendall(BAD_FRAME)
                while client.recv(1000):
                    pass
    lines = [line for line in broker.log_path.read_text().splitlines() if "connection closed" in line]
    assert len(lines) == 2
    assert "(the last of 299 more of this kind in 60 s)" in lines[1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_a_terminal_that_is_closed_stops_in_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.stop(signal.SIGHUP) == 0
    assert "SIGHUP: stopping" in broker.log_path.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_nohup_is_respected(tmp_path: Path) -> None:
    ports = free_ports()
    with running(["nohup", *command(tmp_path, ports, ">/dev/null 2>/dev/null")]) as process:
        assert serves(process, ports[1])
        process.send_signal(signal.SIGHUP)
        assert get(ports[1], "/admin/v2/brokers/ready") == "ok"
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0


def test_a_command_whose_output_finds_no_space_says_so() -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [sys.executable, "-m", "geminga", "topics", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert run.returncode == EXIT_OUTPUT_CLOSED
    assert run.stderr == b"geminga: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", ["--help", "chaos list", "chaos show restarts", "topics --help"])
def test_a_reader_that_has_seen_enough_is_no_error(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone:
        run = subprocess.run(
            [sys.executable, "-m", "geminga", *words.split()],
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (run.returncode, run.stderr) == (EXIT_OUTPUT_CLOSED, b"")
