"""A broker in this process, and what its rooms were given."""

from __future__ import annotations

import functools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from geminga.admin.http import own_host
from geminga.bookie.running.bookie import Bookie
from geminga.broker.operator.view import View
from geminga.broker.topic.rooms import Rooms
from geminga.config.config import Config
from geminga.server import listener, server
from geminga.server.room_settings import DeliveryLogSettings, HostNames, ListenSettings, TailCacheSettings
from geminga.server.server import Addresses
from tests.server.settings.rows import Leaves, flattened


class Call(NamedTuple):
    given: dict[str, Any]
    """Arguments by name; those by position under their numbers, as text."""
    made: Any


class Recorder:
    """Notes the calls of what it stands in front of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: dict[str, list[Call]] = {}

    def watch(self, place: object, name: str, real: Callable[..., Any] | None = None) -> None:
        called = real or getattr(place, name)

        def call(*arguments: Any, **named: Any) -> Any:
            made = called(*arguments, **named)
            given = {**{str(number): value for number, value in enumerate(arguments)}, **named}
            self.calls.setdefault(name, []).append(Call(given, made))
            return made

        self._monkeypatch.setattr(place, name, call)

    def only(self, name: str) -> Call:
        [call] = self.calls[name]
        return call


class Served(NamedTuple):
    addresses: Addresses
    recorder: Recorder
    rooms: Rooms
    view: View
    leaves: Leaves
    """As the rooms were given them; those of `room_leaves`, without the URL that clients are told."""

    def url_told(self) -> str:
        """To a client that has reached the broker at 127.0.0.1."""
        url_for = self.recorder.only("Connections").given["service_url"]
        with socket.create_server(("127.0.0.1", 0)) as reached:
            return str(url_for(reached))


@asynccontextmanager
async def serving(config: Config, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A broker on free ports of loopback, whatever the configuration says."""
    recorder = Recorder(monkeypatch)
    real_bind = listener.bind
    recorder.watch(listener, "bind", lambda host, port: real_bind("127.0.0.1", 0))
    recorder.watch(Bookie, "open_directories")
    recorder.watch(own_host, "OwnHost")
    for name in ("check_instance", "BlockCache", "DeliveryLog", "Connections", "View"):
        recorder.watch(server, name)
    async with trio.open_nursery() as nursery:
        serve = functools.partial(server.serve, config, data_dir=str(data_dir))
        addresses = await nursery.start(serve)
        call = recorder.only("View")
        rooms, view = call.given["0"], call.made
        yield Served(addresses, recorder, rooms, view, _leaves(recorder, rooms, view))
        nursery.cancel_scope.cancel()


def _leaves(recorder: Recorder, rooms: Rooms, view: View) -> Leaves:
    binary, web = (call.given for call in recorder.calls["bind"])
    assert binary["0"] == web["0"], "one host for both ports"
    named = recorder.only("OwnHost").given
    cache = rooms.tail_cache
    given = {
        "bookie": recorder.only("open_directories").given["3"],
        "broker": rooms.settings,
        "policies": rooms.policies.defaults,
        "subscription": rooms.subscription_settings,
        "ledger": rooms.ledger_settings,
        "delay": rooms.delay_settings,
        "tail_cache": TailCacheSettings(cache.bytes_max, cache.age_max_ms, cache.backlogged_entries),
        "delivery_log": _delivery_log(recorder) if rooms.delivery_log else None,
        "clock": recorder.only("check_instance").given["clock"],
        "host_names": HostNames(named["0"], named["listed"]),
        "listen": ListenSettings(binary["0"], binary["1"], web["1"]),
    }
    memory = {f"memory.{part.name}": part.configured_bytes for part in view.process.memory().parts}
    return {**flattened(given), **memory}


def _delivery_log(recorder: Recorder) -> DeliveryLogSettings:
    given = recorder.only("DeliveryLog").given
    return DeliveryLogSettings(
        given["0"], given["interval_s"], given["file_bytes_max"], given["total_bytes_max"], given["own_topic"]
    )
