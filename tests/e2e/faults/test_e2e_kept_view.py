"""A table view whose topic nobody uses: its state outlives unload, trim, inactivity and `kill -9`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.faults.kept_view import KeptView, steps
from tests.e2e.waiting import eventually

HOUR_MS = 3_600_000


class Jumped(KeptView):
    """On a broker whose clock the test moves: unused topics need not be waited for."""

    def outlast(self) -> None:
        self._admin.get(f"{self._path}/stats")
        answer = self._admin.post("/geminga/clock", {"ms": HOUR_MS})
        assert answer.status == 200, answer


@pytest.mark.geminga_only
def test_a_view_is_whole_after_each_step(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", arguments=["--clock", "virtual"])
    found = []
    with process:
        ends = process.endpoints
        view = Jumped(ends.service_url, ends.web_url)

        def restart(number: signal.Signals) -> None:
            process.stop(number)
            process.start()

        for name, do in steps(view, restart):
            if name == "restart":  # a start takes a second, and the other one finds no more on disk
                continue
            do()
            if name == "inactivity":  # the last of what is done to each process; a look takes half a second
                found.append((name, view.left().keys))
        admin = Admin(ends.web_url)
        stats = "/admin/v2/persistent/public/default/kept-view/stats"
        # The subscription of a reader ends a moment after its client has gone.
        eventually(lambda: admin.get(stats).json()["subscriptions"] == {}, what="no subscription is left")
    assert found == [("inactivity", 50)] * 3
