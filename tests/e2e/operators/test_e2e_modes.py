"""What a broker keeps is readable for its own user alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.e2e.broker_process import BrokerProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")


@pytest.fixture
def open_mask() -> Iterator[None]:
    """A mask that takes nothing away: what is private is so on purpose."""
    before = os.umask(0)
    yield
    os.umask(before)


def used(directory: Path, settings: dict[str, str]) -> BrokerProcess:
    """A broker with journals, entry logs, indexes, metadata, cursors and a delivery log."""
    broker = BrokerProcess(directory / "data", settings=settings)
    with broker:
        client = pulsar.Client(broker.endpoints.service_url)
        consumer = client.subscribe("modes", "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer("modes")
        for number in range(10):
            producer.send(b"%d" % number)
            consumer.acknowledge(consumer.receive(20_000))
        client.close()
    return broker


def modes_below(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): f"{path.stat().st_mode & 0o777:o}"
        for path in directory.rglob("*")
        if not path.is_symlink()
    }


@pytest.mark.usefixtures("open_mask")
def test_files_are_0600_and_directories_0700(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    settings = {
        "journalDirectories": str(kept / "journals"),
        "ledgerDirectories": f"{kept / 'ledgers'},{kept / 'more'}",
        "gemingaDeliveryLogDirectory": str(kept / "deliveries"),
    }
    kept.mkdir()
    used(kept, settings)
    (kept / "data.log").unlink()  # these two are the test's
    (kept / "data.conf").unlink()
    found = modes_below(kept)
    wrong = {name for name, mode in found.items() if mode != ("700" if (kept / name).is_dir() else "600")}
    assert wrong == set()
    endings = {name.rpartition(".")[2] for name in found} | {name.rpartition("/")[2] for name in found}
    assert {"journal", "log", "lock", "cookie", "sst", "CURRENT", "rocksdict-config.json", "LOG"} <= endings
    assert any(name.startswith("deliveries/") for name in found)


@pytest.mark.usefixtures("open_mask")
def test_what_an_older_version_left_open_is_closed_by_the_next_start(tmp_path: Path) -> None:
    """Directories alone: what lies below is out of reach then, and a start does not walk over all files."""
    broker = used(tmp_path, {})
    for path in (tmp_path / "data").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with broker:
        pass
    data = tmp_path / "data"
    assert {name: mode for name, mode in modes_below(data).items() if (data / name).is_dir()} == {
        "bookie": "755",
        "bookie/entry-logs": "700",
        "bookie/journal": "700",
        "events": "700",
        "index": "700",
        "metadata": "700",
    }
    assert f"{(data / 'lock').stat().st_mode & 0o777:o}" == "600"
