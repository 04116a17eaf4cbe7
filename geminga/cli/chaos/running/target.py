"""The broker that a scenario runs against."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from geminga.child_broker import BrokerFailed, ChildBroker
from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.chaos.checking.scenario import Scenario

STARTS_MAX: Final = 20
"""So often a broker that ends by itself is started again."""


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

    def __init__(self, broker: ChildBroker) -> None:
        self._broker = broker
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

    async def _again(self, end: Any) -> None:
        self._is_restarting = True
        try:
            # Shielded: half done, there would be a process that nothing stops.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(end)
                await trio.to_thread.run_sync(self._broker.start)
        finally:
            self._is_restarting = False

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
    with ChildBroker(data_dir, settings=settings, arguments=arguments) as broker:
        yield ChildTarget(broker)


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
