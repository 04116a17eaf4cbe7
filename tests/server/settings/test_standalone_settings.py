"""`geminga standalone` hands every key to the broker, and says with the same ones where it listens."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

from geminga.cli import standalone
from geminga.cli.arguments.parser import EXIT_USAGE, Parser
from geminga.config.config import Config
from geminga.config.operator_token import OperatorToken
from geminga.config.values import settings
from geminga.server import server
from geminga.server.server import Addresses
from tests.server.settings.rows import config_of
from tests.server.settings.tables import every_key


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from the environment."""
    for key in settings():
        monkeypatch.delenv(key, raising=False)
    for name in [name for name in os.environ if name.startswith("PULSAR_PREFIX_")]:
        monkeypatch.delenv(name)


def conf_file(root: Path, keys: dict[str, str]) -> str:
    path = root / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return str(path)


def test_every_key_of_the_file_reaches_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[Config, str]] = []

    async def serve(
        config: Config,
        *,
        data_dir: str,
        dropped_log_lines: Callable[[], int],
        operator_token: OperatorToken,
        reopened: Callable[[], None],
        wipes_data: bool,
        fault_rules: Sequence[object],
        task_status: trio.TaskStatus[Addresses],
    ) -> None:
        given.append((config, data_dir))
        task_status.started(Addresses(1, 2))

    monkeypatch.setattr(server, "serve", serve)
    keys = every_key(tmp_path)
    data_dir = str(tmp_path / "data")
    assert standalone.run(Parser, ["--conf", conf_file(tmp_path, keys), "--data-dir", data_dir]) == 0
    assert given == [(config_of(keys), data_dir)]
    [config, _] = given[0]
    differing = [
        name for name in Config.__struct_fields__ if getattr(config, name) != getattr(Config(), name)
    ]
    assert differing == list(Config.__struct_fields__), "every key has another value than its default"
    assert json.loads(capfd.readouterr().out)["binary"] == "pulsar://broker.example:1"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--port", "1"], Config(broker_service_port=1)),
        (["--web-port", "2"], Config(web_service_port=2)),
        (["--bind-address", "127.0.0.2"], Config(bind_address="127.0.0.2")),
        (["--advertised-address", "broker.example"], Config(advertised_address="broker.example")),
        (["--memory", "512M"], Config(memory_mb=512)),
        (["--chaos"], Config(chaos_enabled=True)),
        (["--clock", "virtual"], Config(geminga_clock="virtual")),
        (["--set", "maxMessageSize=1000"], Config(max_message_size=1000)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_flag_sets_its_key_and_no_other(flags: list[str], expected: Config) -> None:
    parsed = standalone.parser(Parser).parse_strictly(flags)
    assert standalone.read_configuration(parsed).config == expected


@pytest.mark.parametrize(
    ("keys", "host"),
    [
        ({}, "127.0.0.1"),
        ({"bindAddress": "127.0.0.2"}, "127.0.0.2"),
        ({"bindAddress": "0.0.0.0"}, "localhost"),
        ({"bindAddress": "::1"}, "[::1]"),
        ({"bindAddress": "127.0.0.2", "advertisedAddress": "broker.example"}, "broker.example"),
    ],
)
def test_the_ready_line_names_the_address_that_clients_use(
    keys: dict[str, str], host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    standalone._Broker(config_of(keys), "/data")._announce(Addresses(1, 2))
    ready = json.loads(capfd.readouterr().out)
    assert (ready["binary"], ready["web"]) == (f"pulsar://{host}:1", f"http://{host}:2")


@pytest.mark.parametrize(("key", "flag"), [("brokerServicePort", "--port"), ("webServicePort", "--web-port")])
def test_a_port_of_the_file_that_is_taken_is_named_with_its_flag(
    key: str, flag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    other = {"brokerServicePort": "0", "webServicePort": "0"}
    error = OSError(errno.EADDRINUSE, "taken")
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        keys = {**other, key: str(port), "bindAddress": "127.0.0.2"}
        assert standalone._Broker(config_of(keys), "/data").explain(error) == standalone.EXIT_PORT_TAKEN
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"geminga standalone: port {port} is already taken by ")
    assert line.endswith(f"; choose another with {flag} or stop that one")


def test_an_address_of_the_file_that_is_not_this_machines_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    broker = standalone._Broker(config_of({"bindAddress": "192.0.2.1"}), "/data")
    assert broker.explain(OSError(errno.EADDRNOTAVAIL, "not here")) == EXIT_USAGE
    assert "bindAddress 192.0.2.1: not an address of this machine" in capfd.readouterr().err
