"""A broker as a bench sees it: a command that is started, answers on two ports, uses CPU and memory, and is
ended.

Linux only: CPU and memory are read from /proc.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
OURS = f"{shlex.quote(sys.executable)} -m geminga standalone --data-dir {{data_dir}}"
BROKER_PORT = 6650
ADMIN_PORT = 8080
NAMESPACE = "public/default"
READY_SECONDS = 120
STOP_SECONDS = 20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x41


class BrokerFailed(Exception):
    """The broker did not start or went away; the text ends with the last lines that it wrote."""


def die_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Ask the kernel to end this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)


def enter_own_network() -> bool:
    """Move this process into a network namespace of its own, where all ports are free; False if not allowed.

    To be called before any thread is started.
    """
    uid, gid = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    # The loopback interface of a new namespace is down.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))
    return True


def answers(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=1).close()
    except OSError:
        return False
    return True


def has_namespace(admin_port: int) -> bool:
    """Whether the default namespace exists: an admin port may answer long before that."""
    url = f"http://localhost:{admin_port}/admin/v2/namespaces/{NAMESPACE.partition('/')[0]}"
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return NAMESPACE in json.load(response)
    except (OSError, ValueError):
        return False


def process_tree(root_pid: int) -> list[int]:
    """The process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(after_name[1]), []).append(int(directory.name))
    tree = [root_pid]
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def cpu_seconds(root_pid: int) -> float:
    """User and system time of a process tree, all threads, since each process started."""
    ticks = 0
    for pid in process_tree(root_pid):
        try:
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / TICKS_PER_SECOND


def resident_bytes(root_pid: int) -> int:
    total = 0
    for pid in process_tree(root_pid):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return total


@dataclass(frozen=True)
class Ports:
    broker: int = BROKER_PORT
    admin: int = ADMIN_PORT

    @property
    def url(self) -> str:
        return f"pulsar://localhost:{self.broker}"


class BrokerProcess:
    """A started broker; leaving the `with` block ends it and removes its data.

    `command` may hold {data_dir}, {port} and {admin_port}. `pid_command`, if given, is a command that prints
    the pid to measure: for a broker that is not a descendant of its command, such as one in a container.
    """

    def __init__(
        self, command: str, ports: Ports, work_dir: str | None = None, pid_command: str = ""
    ) -> None:
        self._directory = tempfile.mkdtemp(prefix="bench-", dir=work_dir)
        self._log_path = Path(self._directory) / "log"
        data_dir = Path(self._directory) / "data"
        data_dir.mkdir()
        self._words = [
            word.format(data_dir=data_dir, port=ports.broker, admin_port=ports.admin)
            for word in shlex.split(command)
        ]
        self._pid_command = pid_command
        self._ports = ports
        self.ports_seconds = 0.0
        """From the start of the process until both ports answer."""
        self.ready_seconds = 0.0
        """From the start of the process until the default namespace exists too."""

    def __enter__(self) -> BrokerProcess:
        if answers(self._ports.broker) or answers(self._ports.admin):
            shutil.rmtree(self._directory, ignore_errors=True)
            raise BrokerFailed(
                f"something answers on port {self._ports.broker} or {self._ports.admin} already"
            )
        with self._log_path.open("wb") as log:
            started = time.monotonic()
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=CHECKOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            self._wait_until_ready(started)
            self.pid = self._process.pid
            if self._pid_command:
                self.pid = int(subprocess.check_output(shlex.split(self._pid_command), timeout=20))
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_until_ready(self, started: float) -> None:
        pending = [self._ports.broker, self._ports.admin]
        while True:
            while pending and answers(pending[0]):
                pending.pop(0)
            if not pending:
                self.ports_seconds = self.ports_seconds or time.monotonic() - started
                if has_namespace(self._ports.admin):
                    break
            if self._process.poll() is not None:
                raise BrokerFailed(f"ended with code {self._process.returncode}\n{self.last_lines()}")
            if time.monotonic() - started > READY_SECONDS:
                missing = f"port {pending[0]}" if pending else f"namespace {NAMESPACE}"
                raise BrokerFailed(f"no {missing} after {READY_SECONDS} s\n{self.last_lines()}")
            time.sleep(0.005)
        self.ready_seconds = time.monotonic() - started

    def last_lines(self, count: int = 15) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-count:])

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal_number)
            try:
                self._process.wait(STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        shutil.rmtree(self._directory, ignore_errors=True)
