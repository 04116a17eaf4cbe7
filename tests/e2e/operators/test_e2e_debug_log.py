"""What `--log-level debug` says of clients and of admin requests, as text and as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess

Make = Callable[..., pulsar.Client]


def use(process: BrokerProcess, make_client: Make) -> None:
    """Connect, produce, subscribe, be refused, ask the admin API; then stop the broker."""
    client = make_client(process.endpoints.service_url)
    client.create_producer("t", producer_name="p")
    client.subscribe("t", "a\nb", pulsar.ConsumerType.Exclusive, consumer_name="c")
    other = make_client(process.endpoints.service_url)
    with contextlib.suppress(pulsar.ConsumerBusy):
        other.subscribe("t", "a\nb", pulsar.ConsumerType.Exclusive)
    Admin(process.endpoints.web_url).get("/admin/v2/persistent/public/default/none/stats")
    client.close()
    assert process.stop() == 0


@pytest.fixture
def log_of(tmp_path: Path, make_client: Make) -> Callable[..., list[str]]:
    def run(*arguments: str) -> list[str]:
        with BrokerProcess(tmp_path / "data", arguments=list(arguments)) as process:
            use(process, make_client)
            return process.log_path.read_text().splitlines()

    return run


EXPECTED = (
    "connected: 'Pulsar-CPP-v",
    "producer 0 'p' produces to 'persistent://public/default/t'",
    "consumer 0 'c' subscribes to 'persistent://public/default/t' / 'a\\nb', Exclusive",
    "CommandSubscribe refused with CONSUMER_BUSY: ",
    "GET /admin/v2/persistent/public/default/none/stats: 404 in ",
    "disconnected; ",
)


def test_debug_tells_of_clients_and_of_admin_requests(log_of: Callable[..., list[str]]) -> None:
    lines = log_of("--log-level", "debug")
    for expected in EXPECTED:
        assert [line for line in lines if expected in line and " DEBUG geminga." in line], expected


def test_json_has_a_record_in_each_line(log_of: Callable[..., list[str]]) -> None:
    records: list[dict[str, Any]] = [
        json.loads(line) for line in log_of("--log-level", "debug", "--log-format", "json")
    ]
    assert {tuple(record) for record in records} == {("time", "level", "logger", "message")}
    for expected in EXPECTED:
        assert [record for record in records if expected in record["message"]], expected
    assert all(record["time"].endswith("Z") for record in records)


def test_by_default_nothing_is_said_of_ordinary_clients(log_of: Callable[..., list[str]]) -> None:
    assert [line for line in log_of() if " WARNING " in line or " DEBUG " in line] == []
