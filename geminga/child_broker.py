"""A broker as a child process, for tests and programs: `geminga standalone` on free ports of this machine.

    with ChildBroker() as broker:
        client = pulsar.Client(broker.service_url)

It is the program that a user starts, so what holds there holds here: a message that was confirmed is on disk,
and a broker that was killed serves it after its next start on the same directory.

The broker belongs to the process that started it, and stops when that process ends, however it ends: the
broker's standard input is a pipe, which ends then. A process that was forked from it has a copy of the
object, which neither stops the broker nor removes its data.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from geminga.snapshot_requests import SnapshotRequests

STOP_SECONDS = 30.0


class BrokerFailed(Exception):
    """The broker did not start, or ended with an error. The message has the end of its log."""


class ChildBroker(SnapshotRequests):
    """Not started yet. A context manager: started at the beginning of the block, stopped at its end."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """`data_dir` keeps the data; without one they are in a new directory, which `stop` removes.
        `settings` are keys of broker.conf, `arguments` further flags of `geminga standalone`.
        """
        self._given_dir = data_dir
        self._arguments = [*arguments]
        for key, value in (settings or {}).items():
            self._arguments += ["--set", f"{key}={value}"]
        self._own_files: _OwnFiles | None = None
        self._starter_pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, str] = {}
        self._last_log = ""

    @property
    def data_dir(self) -> Path:
        """Where the data are; without a given directory only from the first start to `stop`."""
        return Path(self._given_dir) if self._given_dir is not None else self._own("data")

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`, for clients."""
        return self._started("binary")

    @property
    def web_url(self) -> str:
        """`http://host:port`, for the admin API and metrics."""
        return self._started("web")

    @property
    def log(self) -> str:
        """What the broker has written to standard error so far, in all starts."""
        return self._last_log if self._own_files is None else self._own("log").read_text(errors="replace")

    def start(self) -> None:
        """Return when clients can publish. Raises `BrokerFailed`; then nothing runs."""
        assert self._process is None, "it runs already"
        self._starter_pid = os.getpid()
        try:
            self._start()
        except BaseException:
            # Interrupted, by Ctrl-C or a test's time limit.
            if self._process is not None:
                self.kill()
            self._remove_files()
            raise

    def _start(self) -> None:
        if self._own_files is None:
            self._own_files = _OwnFiles()
        command = [sys.executable, "-P", "-m", "geminga", "standalone", "--data-dir", str(self.data_dir)]
        command += ["--port", "0", "--web-port", "0", "--stop-with-stdin", *self._arguments]
        with self._own("log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # its end comes with the end of the process
        if not line:
            code = self._process.wait()
            self._forget()
            self._remove_files()
            raise BrokerFailed(f"the broker ended with code {code} before it was ready\n{self.log[-4000:]}")
        self._ready = json.loads(line)

    def stop(self) -> None:
        """Stop in order, as SIGTERM does, and remove the data unless they have a given directory.

        Raises `BrokerFailed` if it ended otherwise, or has to be killed because it does not end. Does nothing
        if nothing runs, or if another process started it.
        """
        if os.getpid() != self._starter_pid:
            return
        code = self._end()
        self._remove_files()
        if code:
            raise BrokerFailed(f"the broker ended with code {code}\n{self.log[-4000:]}")

    def kill(self) -> None:
        """End it as a crash does. `start` starts it again on the same data, with other ports unless
        `arguments` name them.
        """
        assert self._process is not None, "it does not run"
        assert os.getpid() == self._starter_pid, "another process started it"
        self._process.kill()
        self._process.wait()
        self._forget()

    @property
    def is_running(self) -> bool:
        """Whether the process is there; False if it has ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process; 0: it does not run."""
        return self._process.pid if self._process is not None else 0

    def send_signal(self, number: int) -> None:
        """To the process, as `SIGSTOP` and `SIGCONT`, which hold it up and let it go on."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def end(self) -> None:
        """Stop in order, and leave the data for another `start`. Raises `BrokerFailed` as `stop` does."""
        code = self._end()
        if code:
            raise BrokerFailed(f"the broker ended with code {code}\n{self.log[-4000:]}")

    def _end(self) -> int:
        """Its exit code."""
        if self._process is None:
            return 0
        assert os.getpid() == self._starter_pid, "another process started it"
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._forget()
        return code

    def __enter__(self) -> ChildBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BrokerFailed:
            if kind is None:
                raise

    def _started(self, key: str) -> str:
        assert self._process is not None, "it does not run"
        return self._ready[key]

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def _own(self, name: str) -> Path:
        assert self._own_files is not None, "it was not started, or is stopped"
        return self._own_files.path / name

    def _remove_files(self) -> None:
        if self._own_files is not None:
            self._last_log = self.log
            self._own_files.remove()
            self._own_files = None


class _OwnFiles:
    """A new directory. It is removed when the object is gone, but not with a copy in a forked process, for
    which `tempfile.TemporaryDirectory` removes it.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="geminga-"))
        self.remove = weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        shutil.rmtree(path, ignore_errors=True)
