"""Faults between HTTP clients and the admin port."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.chaos.conftest import Faults
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
NAMESPACES = "/admin/v2/namespaces/public"


def test_a_request_with_an_error_is_not_carried_out(faults: Faults) -> None:
    said = faults.command(
        "set",
        "admin/error",
        *("--status", "503", "--message", "not today", "--method", "PUT"),
        *("--path", NAMESPACES, "--count", "1", "--id", "refused"),
    )
    assert said.startswith("refused: admin/error ")
    answer = faults.web.request("PUT", f"{NAMESPACES}/refused")
    assert (answer.status, answer.json()) == (503, {"reason": "not today"})
    assert "public/refused" not in faults.web.get(NAMESPACES).json()
    assert faults.state("refused")["hits"] == 1
    assert faults.web.request("PUT", f"{NAMESPACES}/refused").status == 204
    assert "public/refused" in faults.web.get(NAMESPACES).json()


def test_a_cut_request_has_no_answer_and_is_not_carried_out(faults: Faults) -> None:
    rule = faults.set("admin/cut", method="PUT")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        faults.web.request("PUT", f"{NAMESPACES}/cut")
    assert "public/cut" not in faults.web.get(NAMESPACES).json()
    assert faults.state(rule)["hits"] == 1
    faults.clear_all()
    assert faults.web.request("PUT", f"{NAMESPACES}/cut").status == 204


def test_a_latency_delays_the_requests_that_it_names(faults: Faults) -> None:
    rule = faults.set("admin/latency", latencyMs=150, jitterMs=20, path="/metrics", seed=2)
    began_s = time.monotonic()
    assert faults.web.get("/metrics").status == 200
    assert time.monotonic() - began_s >= 0.13
    faults.web.get(NAMESPACES)
    assert faults.state(rule)["hits"] == 1
    assert faults.metrics()['geminga_fault_hits_total{place="admin",kind="latency"}'] >= 2


def test_a_request_goes_on_when_the_rule_that_delays_it_is_cleared(faults: Faults) -> None:
    rule = faults.set("admin/latency", latencyMs=3_600_000, path="/metrics")
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(faults.web.get, "/metrics")
        eventually(lambda: faults.state(rule)["hits"] == 1)
        assert not asked.done()
        faults.clear_all()
        assert asked.result().status == 200


def test_rules_can_be_cleared_while_all_else_fails(faults: Faults) -> None:
    cut = faults.set("admin/cut")
    faults.set("admin/error", status=500)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        faults.web.request("GET", "/metrics")
    assert faults.state(cut)["hits"] == 1
    faults.clear_all()
    assert faults.web.get("/metrics").status == 200
