"""A broker in a process of its own, started, stopped and killed the way a user would do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0
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


class BrokerProcess:
    """One `geminga standalone` on one data directory. `start()` returns once its ready line was read.

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
        self.data_dir = data_dir
        self.log_path = log_path or data_dir.with_name(data_dir.name + ".log")
        self._settings = dict(settings or {})
        self._arguments = list(arguments)
        self._ports = ports
        self._endpoints: Endpoints | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._ready: dict[str, object] | None = None

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "geminga", "standalone", "--data-dir", str(self.data_dir)]
        command += ["--port", str(self._ports[0]), "--web-port", str(self._ports[1])]
        if self._settings:
            conf = self.data_dir.with_name(self.data_dir.name + ".conf")
            conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
            command += ["--conf", str(conf)]
        return command + self._arguments

    def start(self) -> Endpoints:
        assert self._process is None, "already started"
        self._is_ready.clear()
        self._ready = None
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT
            )
        self._reader = threading.Thread(target=self._read_stdout, args=(self._process,), daemon=True)
        self._reader.start()
        self._is_ready.wait(READY_SECONDS_MAX)
        if self._ready is None:
            self.kill()
            raise AssertionError(f"no ready line from {self.command()}; its log ends:\n{self.log_tail()}")
        endpoints = Endpoints(str(self._ready["binary"]), str(self._ready["web"]))
        self._ports = (endpoints.binary_address[1], int(endpoints.web_url.rstrip("/").rpartition(":")[2]))
        self._endpoints = endpoints
        return endpoints

    def _read_stdout(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with self.log_path.open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if self._ready is None and line.lstrip().startswith(b"{"):
                    event = json.loads(line)
                    if event.get("event") == "ready":
                        self._ready = event
                        self._is_ready.set()
        self._is_ready.set()

    @property
    def endpoints(self) -> Endpoints:
        """Where it answers, or answered last: a restart does not move it."""
        assert self._endpoints is not None, "never started"
        return self._endpoints

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM, then wait: returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL: nothing in the process gets to say goodbye."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None, "not started"
        process, self._process = self._process, None
        if process.poll() is None:
            os.kill(process.pid, number)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"still running {STOP_SECONDS_MAX} s after {number.name}; its log ends:\n{self.log_tail()}"
            ) from None
        assert self._reader is not None
        self._reader.join(5)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def log_tail(self, lines: int = 40) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
