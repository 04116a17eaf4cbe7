"""A broker in a process of its own, started, stopped and killed the way a user would do it.

    with BrokerProcess(tmp_path / "data") as broker:
        client = pulsar.Client(broker.endpoints.service_url)

The end of the block stops the broker and expects exit code 0. If the block raised, it kills the broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.e2e.child_process import start_child

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
"""After these a process counts as hung; they are no promise about how long a start or a stop takes."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Endpoints:
    """Where a broker answers: `pulsar://host:port` for clients, `http://host:port` for the admin API."""

    service_url: str
    web_url: str
    is_geminga: bool = True

    @property
    def binary_address(self) -> tuple[str, int]:
        host, _, port = self.service_url.removeprefix("pulsar://").rstrip("/").rpartition(":")
        return host, int(port)


class StandaloneProcess:
    """`geminga standalone` with these arguments. `start()` returns once its ready line was read."""

    def __init__(self, *arguments: str, log_path: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log_path = log_path
        """Standard error of all starts."""
        self.printed: list[str] = []
        """Lines on standard output since the last start."""
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._endpoints: Endpoints | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._ready: dict[str, Any] | None = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", "geminga", "standalone", *self._arguments]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if kind is not None:
            self.kill()
            return
        was_running = self.is_running()
        code = self.stop() if was_running else self.wait()
        assert was_running, f"the broker ended by itself with code {code}; its log ends:\n{self.log_tail()}"
        assert code == 0, f"exit code {code}; its log ends:\n{self.log_tail()}"

    def start(self) -> Endpoints:
        assert self._process is None, "already started"
        self._is_ready.clear()
        self._ready = None
        self.printed = []
        with self.log_path.open("ab") as log:
            self._process = start_child(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=os.environ | self._environment,
            )
        try:
            self._reader = threading.Thread(target=self._read_stdout, args=(self._process,), daemon=True)
            self._reader.start()
            self._is_ready.wait(READY_SECONDS_MAX)
            if self._ready is None:
                raise AssertionError(f"no ready line from {self.command()}; its log ends:\n{self.log_tail()}")
        except BaseException:
            self.kill()
            raise
        self._endpoints = Endpoints(self._ready["binary"], self._ready["web"])
        return self._endpoints

    def _read_stdout(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.printed.append(line.decode().rstrip("\n"))
            if self._ready is None and line.lstrip().startswith(b"{"):
                event = json.loads(line)
                if event.get("event") == "ready":
                    self._ready = event
                    self._is_ready.set()
        self._is_ready.set()

    @property
    def ready(self) -> dict[str, Any]:
        """The ready line of the last start."""
        assert self._ready is not None, "never ready"
        return self._ready

    @property
    def endpoints(self) -> Endpoints:
        """Where it answers, or answered last."""
        assert self._endpoints is not None, "never started"
        return self._endpoints

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """To the broker; nothing happens if it has ended."""
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal, then wait: returns the exit code."""
        self.send_signal(number)
        return self.wait()

    def kill(self) -> int:
        """SIGKILL: nothing in the process gets to say goodbye."""
        assert self._process is not None, "not started"
        self._process.kill()
        return self.wait()

    def wait(self) -> int:
        """Until it has ended: returns the exit code."""
        assert self._process is not None, "not started"
        process, self._process = self._process, None
        is_hung = False
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except BaseException as error:
            process.kill()
            code = process.wait()
            is_hung = isinstance(error, subprocess.TimeoutExpired)
            if not is_hung:
                raise
        finally:
            if self._reader is not None:
                self._reader.join(5)
            assert process.stdout is not None
            process.stdout.close()
        assert not is_hung, f"did not end in {STOP_SECONDS_MAX} s; its log ends:\n{self.log_tail()}"
        return code

    def log_tail(self, lines: int = 40) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


class BrokerProcess(StandaloneProcess):
    """One broker on one data directory.

    The first start takes free ports; later starts of the same object take the same ones again, so that
    clients which are still alive find the broker where they left it.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        log_path: Path | None = None,
        ports: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(*arguments, log_path=log_path or data_dir.with_name(data_dir.name + ".log"))
        self.data_dir = data_dir
        self._settings = dict(settings or {})
        port = ports[0] or _lasting_port(ports[1])
        self._ports = (port, ports[1] or _lasting_port(port))

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "geminga", "standalone", "--data-dir", str(self.data_dir)]
        command += ["--port", str(self._ports[0]), "--web-port", str(self._ports[1])]
        if self._settings:
            conf = self.data_dir.with_name(self.data_dir.name + ".conf")
            conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
            command += ["--conf", str(conf)]
        return [*command, *self._arguments]


def _lasting_port(other: int) -> int:
    """A free port, not `other`, that is still free after a restart: below those that systems give to clients,
    which take the port of a stopped broker at times.
    """
    while True:
        # Not from `random`: the test run seeds that, with the same number in each of its processes.
        port = 10_240 + secrets.randbelow(20_000)
        if port == other:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def run_client(broker: BrokerProcess, *arguments: str, text: str = "") -> str:
    """What `geminga ARGUMENTS --url BROKER` prints, which is expected to succeed; `text` is its input."""
    run = subprocess.run(
        [sys.executable, "-m", "geminga", *arguments, "--url", broker.endpoints.service_url],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
