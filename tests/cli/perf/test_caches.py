"""`geminga perf tail` and `catch-up`: where a broker says that it found what was consumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from geminga.cli.perf.course import Course, Sample, Served
from geminga.cli.perf.metrics import sums
from tests.e2e.broker_process import BrokerProcess

GEMINGA = [sys.executable, "-P", "-m", "geminga"]


class Addresses(NamedTuple):
    binary: str
    web: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    with BrokerProcess(tmp_path_factory.mktemp("perf") / "data") as process:
        yield Addresses(process.endpoints.service_url, process.endpoints.web_url)


def perf(broker: Addresses, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*GEMINGA, "perf", *arguments, "--url", broker.binary, "--web-url", broker.web]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def measured(broker: Addresses, *arguments: str) -> dict[str, Any]:
    done = perf(broker, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_who_keeps_up_reads_nothing_from_the_bookie(broker: Addresses, tmp_path: Path) -> None:
    picture = tmp_path / "tail.png"
    found = measured(broker, "tail", "at-the-tail", "--duration", "3s", "-r", "2000", "--png", str(picture))
    summary = found["summary"]
    assert summary["consumed_messages"] > 0
    assert summary["tail_cache_share"] == 1.0
    assert summary["entries_read_from_bookie"] == summary["disk_reads"] == 0
    assert sum(sample["tail_bytes"] for sample in found["samples"]) > 1024
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_who_comes_late_reads_from_the_bookie(broker: Addresses) -> None:
    """More than 1,000 entries behind: not near the tail any more. They are in the write cache still."""
    found = measured(
        broker, "catch-up", "late", "--backlog", "2s", "--duration", "2s", "-r", "2000", "--batch", "1"
    )
    summary = found["summary"]
    assert summary["consumed_messages"] > 0
    assert summary["bookie_share"] == summary["write_cache_share"] == 1.0
    assert summary["entries_read_from_bookie"] >= summary["consumed_messages"]


def test_without_metrics_it_says_so(broker: Addresses) -> None:
    done = perf(broker._replace(web="http://127.0.0.1:1"), "tail", "t")
    assert done.returncode != 0
    assert "127.0.0.1:1/metrics" in done.stderr
    assert len(done.stderr.splitlines()) == 1


PULSAR_PAGE = """\
# TYPE pulsar_ml_cache_hits_throughput gauge
pulsar_ml_cache_hits_throughput{cluster="standalone"} 1712901.098901099
pulsar_subscription_msg_rate_out{topic="a b",subscription="s"} 2.5
pulsar_subscription_msg_rate_out{topic="c",subscription="s"} 1
bookkeeper_server_READ_ENTRY_count{success="false"} 7
bookkeeper_server_READ_ENTRY_count{success="true"} 40
bookkeeper_server_READ_ENTRY{success="true",quantile="0.5"} NaN
jvm_threads_current 105.0
"""


def test_an_exposition_is_summed_over_its_labels() -> None:
    assert sums(PULSAR_PAGE) == {
        "pulsar_ml_cache_hits_throughput": 1712901.098901099,
        "pulsar_subscription_msg_rate_out": 3.5,
        "bookkeeper_server_READ_ENTRY_count": 40.0,
        "jvm_threads_current": 105.0,
    }


def test_shares_are_of_the_bytes_that_were_served() -> None:
    course = Course("catch-up", consuming_from_s=1.5)
    course.samples = [
        Sample(1, 1.0, Served(), 10, 4_000_000, 0, 0),
        Sample(2, 1.0, Served(1e6, 0, 2e6, 1e6, 0, 30, 2), 10, 2_000_000, 5, 4_000_000),
    ]
    summary = course.summary()
    assert summary["publish_mb_per_s"] == 3.0
    assert summary["consume_mb_per_s"] == 4.0
    assert (summary["tail_cache_share"], summary["read_cache_share"], summary["entry_log_share"]) == (
        0.25,
        0.5,
        0.25,
    )
    assert summary["bookie_share"] == 0.75
    assert summary["read_ahead_share"] == 0.6667
    assert (summary["entries_read_from_bookie"], summary["disk_reads"]) == (30, 2)
