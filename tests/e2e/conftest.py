"""What end-to-end tests share: a broker in its own process, official clients, a name for each test's topic.

Against another broker: set GEMINGA_E2E_SERVICE_URL (pulsar://localhost:6650) and GEMINGA_E2E_WEB_URL
(http://localhost:8080), then `pytest tests/e2e`. Tests marked `geminga_only` are then skipped, all others
must pass there too: that is how the expectations were made. GEMINGA_E2E_BROKER=geminga says that the running
broker is a Geminga after all.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pulsar

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints

SERVICE_URL_KEY, WEB_URL_KEY, BROKER_KEY = (
    "GEMINGA_E2E_SERVICE_URL",
    "GEMINGA_E2E_WEB_URL",
    "GEMINGA_E2E_BROKER",
)
SETTINGS = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "activeConsumerFailoverDelayTimeMillis": "200",
}
"""What the broker under test is started with; the second only saves time, tests do not depend on it."""
_numbers = itertools.count()


def is_external() -> bool:
    return SERVICE_URL_KEY in os.environ


def is_geminga() -> bool:
    return not is_external() or os.environ.get(BROKER_KEY, "").lower() == "geminga"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "geminga_only: asserts what only this broker does, or restarts it")
    config.addinivalue_line("markers", "long: takes minutes; runs only when GEMINGA_LONG is set")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("geminga_only") and not is_geminga():
            item.add_marker(pytest.mark.skip(reason="asserts what only Geminga does"))
        if item.get_closest_marker("long") and not os.environ.get("GEMINGA_LONG"):
            item.add_marker(pytest.mark.skip(reason="long run: set GEMINGA_LONG=1"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """The broker that most tests share."""
    if is_external():
        yield Endpoints(os.environ[SERVICE_URL_KEY], os.environ[WEB_URL_KEY], is_geminga())
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=SETTINGS) as process:
        yield process.endpoints


@pytest.fixture(scope="session")
def admin(broker: Endpoints) -> Admin:
    return Admin(broker.web_url)


@pytest.fixture
def make_client(broker: Endpoints, tmp_path: Path) -> Iterator[Callable[..., pulsar.Client]]:
    """Official clients on this test's broker, closed after it; their log lines go to a file."""
    clients = []

    def make(service_url: str | None = None, **options: object) -> pulsar.Client:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
        client = pulsar.Client(
            service_url or broker.service_url,
            logger=logger,
            **{"operation_timeout_seconds": 10, "stats_interval_in_seconds": 0, **options},
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        try:
            client.close()
        except pulsar.AlreadyClosed:
            pass


@pytest.fixture
def client(make_client: Callable[..., pulsar.Client]) -> pulsar.Client:
    return make_client()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test, and no earlier run against the same broker, has used."""
    local = "".join(character if character.isalnum() else "-" for character in request.node.name)
    name = f"persistent://public/default/{local}-{os.getpid()}-{next(_numbers)}"
    return name.replace("-partition-", "-part-")  # only partitions may be called so
