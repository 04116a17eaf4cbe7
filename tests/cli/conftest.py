"""A broker for the tests of the client commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from geminga.cli.client import addresses
from tests.e2e.broker_process import BrokerProcess

GEMINGA = [sys.executable, "-P", "-m", "geminga"]
SECONDS_MAX = 30

Geminga = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """GEMINGA_TEST_URL names another broker, say a real Pulsar: the client must do the same there."""
    if "GEMINGA_TEST_URL" in os.environ:
        yield os.environ["GEMINGA_TEST_URL"]
        return
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "data") as process:
        yield process.endpoints.service_url


@pytest.fixture(scope="session")
def web_url(broker_url: str) -> str:
    """The same broker's admin address; of another broker GEMINGA_TEST_WEB_URL."""
    return os.environ.get("GEMINGA_TEST_WEB_URL") or addresses.web_url(broker_url)


@pytest.fixture
def geminga(broker_url: str) -> Geminga:
    """Runs one command against the broker."""

    def call(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GEMINGA, *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            input=text,
            env={**os.environ, "GEMINGA_URL": broker_url},
        )

    return call


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"cli-{request.node.name.split('[')[0]}-{os.getpid()}"
