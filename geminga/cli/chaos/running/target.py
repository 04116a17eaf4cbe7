"""The broker that a scenario runs against."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from geminga.child_broker import BrokerFailed, ChildBroker
from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.chaos.checking.scenario import Scenario

NOTICED_SECONDS_MAX: Final = 15.0
"""So long a broker may take to see that files are gone, which it looks for every two seconds."""
REMOVED: Final = {"index": "index", "journal": "bookie/journal", "entry-log": "bookie/entry-logs"}
"""Directories in a data directory."""
SAID_CHARACTERS_MAX: Final = 250
STARTS_MAX: Final = 20
"""So often a broker that ends by itself is started again."""


class StartRefused(Exception):
    """The broker does not start on what an operator has left of its files, and names no remedy. It starts
    after all else, and on a copy that was made while it was stopped.
    """


class Target(Protocol):
    """A broker, and what can be done to it."""

    service_url: str
    web_url: str
    is_ours: bool
    """Whether it has our faults, clock and events, and may be killed."""

    async def kill(self) -> None:
        """End it as a crash does, and start it again."""
        ...

    async def restart(self) -> None:
        """Stop it in order, and start it again."""
        ...

    async def pause(self, length_ms: int) -> None:
        """Stop the process for a time, as a laptop's lid or a debugger does."""
        ...

    async def copy(self, *, stopped: bool) -> None:
        """Copy its data directory, while it runs or between a stop and a start."""
        ...

    async def restore(self, *, stopped: bool) -> None:
        """Stop or kill it, put the last copy in place, and start it again. Raises `StartRefused`."""
        ...

    async def remove(self, files: str, *, stopped: bool) -> str:
        """Remove these files, while it runs or between a stop and a start; what it said of that, "" if
        nothing. It runs again on return. Raises `StartRefused`.
        """
        ...

    async def ended(self) -> str:
        """Wait until it ends by itself; what is known of why."""
        ...

    async def start_again(self) -> None:
        """After `ended`. Raises `BrokerFailed`."""
        ...

    def pid(self) -> int:
        """Of its process on this machine; 0: not known."""
        ...


async def ask(
    target: Target, method: str, path: str, body: object = None, *, seconds_max: float = 30, **query: object
) -> Any:
    """A request to the admin API, off the loop. Raises `RequestFailed`."""
    admin = Admin(target.web_url, seconds_max=seconds_max)
    return await trio.to_thread.run_sync(
        lambda: admin.call(method, path, body, **query), abandon_on_cancel=True
    )


class RemoteTarget:
    """A broker that runs already, ours or Pulsar's; it stays as it is."""

    is_ours = False

    def __init__(self, service_url: str, web_url: str) -> None:
        self.service_url = service_url
        self.web_url = web_url

    async def kill(self) -> None:
        raise NotImplementedError

    async def restart(self) -> None:
        raise NotImplementedError

    async def pause(self, length_ms: int) -> None:
        raise NotImplementedError

    async def copy(self, *, stopped: bool) -> None:
        raise NotImplementedError

    async def restore(self, *, stopped: bool) -> None:
        raise NotImplementedError

    async def remove(self, files: str, *, stopped: bool) -> str:
        raise NotImplementedError

    async def ended(self) -> str:
        await trio.sleep_forever()
        raise AssertionError

    async def start_again(self) -> None:
        raise NotImplementedError

    def pid(self) -> int:
        return 0


class ChildTarget:
    """A `geminga standalone` of the run's own, on the same ports after each start."""

    is_ours = True

    def __init__(self, broker: ChildBroker, copy: Path) -> None:
        """`copy`: where copies of its data go."""
        self._broker = broker
        self._copy = copy
        self._copy_is_orderly = False
        self._is_restarting = False
        self._starts = 1
        self.service_url = broker.service_url
        self.web_url = broker.web_url

    @property
    def log(self) -> str:
        return self._broker.log

    async def kill(self) -> None:
        await self._again(self._broker.kill)

    async def restart(self) -> None:
        await self._again(self._broker.end)

    async def pause(self, length_ms: int) -> None:
        self._broker.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(length_ms / 1000)
        finally:
            self._broker.send_signal(signal.SIGCONT)

    async def copy(self, *, stopped: bool) -> None:
        data = self._broker.data_dir
        if stopped:
            await self._again(self._broker.end, functools.partial(_copy_tree, data, self._copy))
        else:
            await trio.to_thread.run_sync(_copy_tree, data, self._copy)
        self._copy_is_orderly = stopped

    async def restore(self, *, stopped: bool) -> None:
        end = self._broker.end if stopped else self._broker.kill
        put = functools.partial(_copy_tree, self._copy, self._broker.data_dir)
        # A copy of a stopped broker starts, or the broker is wrong.
        await self._again(end, put, self._start if self._copy_is_orderly else self._start_advised)

    async def remove(self, files: str, *, stopped: bool) -> str:
        directory = self._broker.data_dir / REMOVED[files]
        if stopped:
            remove = functools.partial(shutil.rmtree, directory)
            return await self._again(self._broker.end, remove, self._start_advised)
        self._is_restarting = True
        for file in directory.iterdir():
            file.unlink(missing_ok=True)
        with trio.move_on_after(NOTICED_SECONDS_MAX):
            while self._broker.is_running:  # noqa: ASYNC110
                await trio.sleep(0.05)
        said = "" if self._broker.is_running else self._brief(self._last_line())
        advice = await self._again(self._end_however, start=self._start_advised)
        return f"{said}; {advice}" if said and advice else said

    def _end_however(self) -> None:
        with contextlib.suppress(BrokerFailed):
            self._broker.end()

    async def _again(
        self,
        end: Callable[[], None],
        change: Callable[[], None] = lambda: None,
        start: Callable[[], str] | None = None,
    ) -> str:
        """What `start` returns. `change` is done between end and start."""
        self._is_restarting = True
        try:
            # Shielded: half done, there would be a process that nothing stops.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(end)
                await trio.to_thread.run_sync(change)
                said = await trio.to_thread.run_sync(start or self._start)
        finally:
            self._is_restarting = False
        return said

    def _start(self) -> str:
        self._broker.start()
        return ""

    def _start_advised(self) -> str:
        """The advice that was taken, if the start needed any. Raises `StartRefused`."""
        try:
            return self._start()
        except BrokerFailed as refusal:
            lines = str(refusal).splitlines()
            said = next(
                (line for line in reversed(lines) if line.startswith("geminga standalone: ")), lines[-1]
            )
            if "geminga bookie rebuild-index" not in str(refusal):
                raise StartRefused(self._brief(said)) from None
        command = [sys.executable, "-P", "-m", "geminga", "bookie", "rebuild-index"]
        data = str(self._broker.data_dir)
        rebuilt = subprocess.run([*command, "--data-dir", data], capture_output=True, check=False)
        if rebuilt.returncode:
            raise BrokerFailed(f"'geminga bookie rebuild-index' ended with code {rebuilt.returncode}")
        self._broker.start()
        return f"{self._brief(said)}; so 'geminga bookie rebuild-index' was run"

    def _brief(self, line: str) -> str:
        """A line of the log without its head, with the names of files in the data directory."""
        text = line.partition(" geminga.server: ")[2] or line
        return text.replace(f"{self._broker.data_dir}/", "")[:SAID_CHARACTERS_MAX]

    async def ended(self) -> str:
        # By looking: a thread that waits for a process cannot be called back from it.
        while self._is_restarting or self._broker.is_running:  # noqa: ASYNC110
            await trio.sleep(0.05)
        return self._last_line()

    async def start_again(self) -> None:
        self._starts += 1
        with contextlib.suppress(BrokerFailed):
            await trio.to_thread.run_sync(self._broker.end)
        if self._starts > STARTS_MAX:
            raise BrokerFailed(f"it ended by itself {STARTS_MAX} times")
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._broker.start)

    def pid(self) -> int:
        return self._broker.pid

    def _last_line(self) -> str:
        lines = [line for line in self.log.splitlines() if " ERROR " in line or " CRITICAL " in line]
        return lines[-1] if lines else "by SIGKILL, as a rule of faults said"


@contextlib.contextmanager
def child_target(scenario: Scenario, data_dir: Path | None) -> Iterator[ChildTarget]:
    """A broker for the block, with the scenario's settings and clock. Raises `BrokerFailed`."""
    settings: Mapping[str, str] = {"isDelayedDeliveryDeliverAtTimeStrict": "true", **scenario.broker}
    port, web_port = _free_ports()
    arguments = ["--chaos", "--clock", scenario.clock, "--port", str(port), "--web-port", str(web_port)]
    with tempfile.TemporaryDirectory(prefix="geminga-") as name:
        own = Path(name)
        # Given, or a start that is refused would remove what it was refused for.
        with ChildBroker(data_dir or own / "data", settings=settings, arguments=arguments) as broker:
            yield ChildTarget(broker, own / "copy")


def _copy_tree(source: Path, target: Path) -> None:
    """As `cp -a` into an empty place: what goes away meanwhile is left out."""

    def copy(old: str, new: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(old, new)

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=copy)


def _free_ports() -> tuple[int, int]:
    # Clients come back to the same address after a restart, so it cannot be left to each start.
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


async def exists(target: Target) -> bool:
    """Whether its admin API answers."""
    try:
        await ask(target, "GET", "/admin/v2/clusters")
    except RequestFailed:
        return False
    return True
