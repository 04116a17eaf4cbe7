"""The client that loads a broker in a bench: the official Go client where Go is installed, else the Python
one.

Both are programs of their own that run one phase and print a JSON line when it begins and when it ends.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import BrokerProcess, Ports, cpu_seconds, die_with_parent

BENCH = Path(__file__).resolve().parent
GO_SOURCE = BENCH / "go_client"
PYTHON_CLIENT = [sys.executable, str(BENCH / "python_client.py")]
BUILD_SECONDS = 240


class PhaseFailed(Exception):
    """The client gave up: an error from the broker, or a phase that took too long."""


@dataclass(frozen=True)
class PhaseResult:
    fields: dict[str, Any]
    broker_cpu_seconds: float
    client_cpu_seconds: float
    messages: int = field(default=0)

    @property
    def per_second(self) -> float:
        return self.messages / float(self.fields["seconds"])

    @property
    def broker_cpu_us(self) -> float:
        """Of the broker, for each message."""
        return self.broker_cpu_seconds / self.messages * 1e6

    @property
    def client_cpu_us(self) -> float:
        return self.client_cpu_seconds / self.messages * 1e6


def build(directory: Path, wanted: str = "auto") -> tuple[list[str], str]:
    """The client's command, and a line that says which client it is (and why, if it is the second choice)."""
    if wanted == "python":
        return PYTHON_CLIENT, "client: Python (asked for)"
    go = shutil.which("go")
    reason = "Go is not installed"
    if go is not None:
        program = directory / "go_client"
        try:
            built = subprocess.run(
                [go, "build", "-o", str(program), "."],
                cwd=GO_SOURCE,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
            )
            if built.returncode == 0:
                return [str(program)], "client: Go"
            reason = f"go build failed: {built.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired:
            reason = f"go build took longer than {BUILD_SECONDS} s"
    if wanted == "go":
        raise SystemExit(reason)
    return PYTHON_CLIENT, f"client: Python, because {reason}"


class LoadClient:
    """Runs phases against one broker."""

    def __init__(
        self, command: list[str], broker: BrokerProcess, ports: Ports, subscription_type: str
    ) -> None:
        self._command = [*command, "-url", ports.url, "-type", subscription_type]
        self._broker = broker

    def run(
        self,
        phase: str,
        topic: str,
        *,
        count: int = 0,
        batched: bool = False,
        size: int = 1024,
        rate: int = 500,
        delay_ms: int = 2000,
        timeout_s: int = 60,
    ) -> PhaseResult:
        """One phase; the CPU is taken between its first and its last message. Raises PhaseFailed."""
        words = [*self._command, "-phase", phase, "-topic", topic, "-count", str(count), "-size", str(size)]
        words += [
            f"-batched={'true' if batched else 'false'}",
            "-rate",
            str(rate),
            "-timeout",
            f"{timeout_s}s",
        ]
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        assert process.stdout is not None
        before = after = (0.0, 0.0)
        fields: dict[str, Any] | None = None
        with process:
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                event = json.loads(line)
                now = (self._broker.cpu_seconds(), cpu_seconds(process.pid))
                if event["event"] == "begin":
                    before = now
                else:
                    after, fields = now, event
            assert process.stderr is not None
            complaint = process.stderr.read().strip()[-500:]
        if process.returncode != 0 or fields is None:
            alive = "" if self._broker.is_alive() else f"; the broker has ended:\n{self._broker.last_lines()}"
            raise PhaseFailed(f"phase {phase}: code {process.returncode}: {complaint}{alive}")
        return PhaseResult(fields, after[0] - before[0], after[1] - before[1], int(fields.get("messages", 0)))
