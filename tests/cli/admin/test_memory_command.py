"""`geminga memory`, its endpoint and the bookie's metrics, against a broker in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.broker_process import BrokerProcess

MIB = 1024 * 1024
SECONDS_MAX = 30
GEMINGA = [sys.executable, "-P", "-m", "geminga"]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    data_dir = tmp_path_factory.mktemp("memory") / "data"
    arguments = ["--memory", "256M", "--set", "managedLedgerCacheSizeMB=10"]
    with BrokerProcess(data_dir, arguments=arguments) as process:
        subprocess.run(
            [*GEMINGA, "produce", "--url", process.ready["binary"], "memory-topic", "-m", "x" * 5000],
            check=True,
            capture_output=True,
            timeout=SECONDS_MAX,
        )
        yield process.ready


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GEMINGA, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX)


def test_the_report_adds_up(ready: dict[str, Any]) -> None:
    answer = run("memory", "--url", ready["web"], "--json")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    parts = {part["name"]: part for part in report["parts"]}
    assert parts["write_cache"]["configured_bytes"] == 64 * MIB
    assert parts["write_cache"]["used_bytes"] > 5000
    assert parts["tail_cache"]["configured_bytes"] == 10 * MIB
    assert parts["tail_cache"]["setting"] == "managedLedgerCacheSizeMB"
    assert report["budget_bytes"] == sum(part["configured_bytes"] for part in parts.values())
    assert report["budget_bytes"] <= 256 * MIB
    if sys.platform == "linux":
        assert report["resident_bytes"] == sum(part["used_bytes"] for part in parts.values()) > 20 * MIB
    shares = {share["name"]: share["used_bytes"] for share in report["process"]}
    assert list(shares) == ["at_start", "topics", "delayed", "http", "rocksdb", "rest"]
    assert shares["topics"] == 8 * 1024, "one topic without subscriptions"
    assert shares["delayed"] == 0
    if sys.platform == "linux":
        assert shares["at_start"] > 20 * MIB
        assert sum(shares.values()) >= parts["process"]["used_bytes"]
    table = run("memory", "--url", ready["web"]).stdout
    for text in ("at start", "1 loaded", "write cache", "64.0 MiB", "dbStorage_writeCacheMaxSizeMb", "sum"):
        assert text in table


def test_the_bookie_is_in_the_metrics(ready: dict[str, Any]) -> None:
    with urllib.request.urlopen(f"{ready['web']}/metrics", timeout=SECONDS_MAX) as response:
        page = response.read().decode()
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    assert found["bookie_SERVER_STATUS"] == 1
    assert found["bookie_WRITE_BYTES"] > 5000
    assert found["bookie_write_cache_size"] > 5000
    assert found["bookie_ledgers_count"] >= 1
    assert found["bookie_entries_count"] == found['bookkeeper_server_ADD_ENTRY_count{success="true"}']
    assert found['bookie_journal_JOURNAL_SYNC_count{success="true"}'] >= 1
    assert found['bookie_journal_JOURNAL_SYNC_sum{success="true"}'] > 0
    assert found["geminga_bookie_recovery_entries_lost"] == 0
    assert found['geminga_memory_configured_bytes{part="read_cache"}'] == 64 * MIB
    assert len([line for line in page.splitlines() if line.startswith("# TYPE bookie_WRITE_BYTES")]) == 1


def test_nobody_answers(tmp_path: Path) -> None:
    answer = run("memory", "--url", "http://127.0.0.1:1")
    assert answer.returncode == 1
    assert "127.0.0.1:1" in answer.stderr
    assert run("memory", "--url", "file:///etc").returncode == 1


@pytest.mark.parametrize("size", ["192", "5x", "M", "-1G", "1.5G"])
def test_a_size_that_is_none(size: str, tmp_path: Path) -> None:
    answer = run("standalone", "--data-dir", str(tmp_path / "d"), f"--memory={size}")
    assert answer.returncode == 2
    assert "such as 192M or 1G" in answer.stderr


def test_too_little(tmp_path: Path) -> None:
    answer = run("standalone", "--data-dir", str(tmp_path / "d"), "--memory", "100M")
    assert answer.returncode == 2
    assert "--memory 100M: expected from 160M to" in answer.stderr
    assert not (tmp_path / "d").exists()
