"""The processors' use between two load reports."""

from __future__ import annotations

from geminga.admin.routes.cluster.broker_stats import HostCpu


def test_a_report_tells_what_was_used_since_the_one_before() -> None:
    ticks = iter([(1_000, 10_000), (1_050, 10_200), (1_050, 10_200), (1_250, 10_400), (1_240, 10_600)])
    cpu = HostCpu(lambda: next(ticks))
    assert [cpu.share() for _ in range(4)] == [0.25, 0.25, 1.0, 0.0]
