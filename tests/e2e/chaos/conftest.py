"""A broker with `--chaos`, and its faults as a test sets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import ROOT, BrokerProcess


class Faults:
    """The rules of one broker, over REST and by command."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    @property
    def web(self) -> Admin:
        return Admin(self.broker.endpoints.web_url)

    def set(self, fault: str, **fields: Any) -> str:
        """Set a rule; its id."""
        place, _, kind = fault.partition("/")
        answer = self.web.request("POST", "/geminga/faults", {"place": place, "kind": kind, **fields})
        assert answer.status == 200, answer
        return str(answer.json()["rule"]["id"])

    def refused(self, **fields: Any) -> str:
        """The reason for which a rule is refused."""
        answer = self.web.request("POST", "/geminga/faults", fields)
        assert answer.status == 400, answer
        return str(answer.json()["reason"])

    def state(self, rule_id: str) -> Any:
        return self.web.get(f"/geminga/faults/rules/{rule_id}").json()

    def clear_all(self) -> None:
        assert self.web.request("DELETE", "/geminga/faults").status == 200

    def metrics(self) -> dict[str, float]:
        """The samples of faults, by name and labels."""
        page = self.web.get("/metrics").text
        found = [line.rpartition(" ") for line in page.splitlines() if line.startswith("geminga_fault")]
        return {name: float(value) for name, _, value in found}

    def command(self, *arguments: str, code: int = 0) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "geminga", "fault", *arguments, "--url", self.broker.endpoints.web_url],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert run.returncode == code, run
        return run.stdout + run.stderr


@pytest.fixture(scope="module")
def chaos_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("chaos") / "data", arguments=["--chaos"]) as process:
        yield process


@pytest.fixture
def faults(chaos_broker: BrokerProcess) -> Iterator[Faults]:
    """Of a broker that the tests of a module share; cleared after each test."""
    found = Faults(chaos_broker)
    yield found
    found.clear_all()
