"""Metadata that is behind the bookie's files: a broker refuses it and writes nothing, and starts once the
right files are back.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, run_client
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")

SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10", "managedLedgerMinLedgerRolloverTimeMinutes": "0"}
COMMAND = [sys.executable, "-m", "geminga", "standalone"]
TOPIC = "persistent://public/default/orders"
NAMESPACE = "persistent/public/default"


def refused(data_dir: Path, *arguments: str) -> str:
    """What a start says that ends with exit code 4."""
    run = subprocess.run(
        [*COMMAND, "--data-dir", str(data_dir), "--port", "0", "--web-port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 4, run.stderr
    return run.stderr


def contents(directory: Path) -> dict[str, bytes]:
    """All files but the lock, which has the last process's id."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that was killed with 45 entries in five ledgers, all of them receipted."""
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data", settings=SETTINGS)
    with contextlib.suppress(AssertionError), broker:
        run_client(broker, "produce", TOPIC, "--stdin", text="".join(f"message {n}\n" for n in range(45)))
        broker.kill()
    return broker.data_dir


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_cut_log_is_refused_and_the_whole_log_put_back_is_enough(
    killed: Path, tmp_path: Path, share: float
) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    [wal] = (data / "metadata").glob("*.log")
    whole = wal.read_bytes()
    wal.write_bytes(whole[: int(len(whole) * share)])
    before = contents(data)
    text = refused(data)
    assert f"{data}/metadata: the metadata is behind the bookie's files" in text
    assert f"geminga bookie unrecorded restore --data-dir {data}" in text
    if not share:
        assert "5 ledgers (2-6), 45 entries" in text
    assert contents(data) == before
    wal.write_bytes(whole)
    with BrokerProcess(data) as broker:
        got = run_client(
            broker, "consume", TOPIC, "-s", "s", "--from", "earliest", "-n", "45", "--timeout", "9s"
        )
    assert all(f"message {number}" in got for number in range(45))


@pytest.mark.parametrize("emptied", [False, True])
def test_metadata_that_is_gone_is_refused_and_topics_come_back_without_it(
    killed: Path, tmp_path: Path, emptied: bool
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(killed, data_dir)
    shutil.rmtree(data_dir / "metadata")
    if emptied:
        (data_dir / "metadata").mkdir()
    before = contents(data_dir)
    text = refused(data_dir)
    assert "It is gone or empty" in text
    assert TOPIC in text
    assert f"geminga bookie unrecorded restore --data-dir {data_dir}" in text
    assert contents(data_dir) == before, "a refused start writes nothing"
    restored = subprocess.run(
        [sys.executable, "-m", "geminga", "bookie", "unrecorded", "restore", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (restored.returncode, "45 entries" in restored.stdout) == (0, True), restored
    with BrokerProcess(data_dir) as broker:
        got = run_client(
            broker, "consume", TOPIC, "-s", "s", "--from", "earliest", "-n", "45", "--timeout", "9s"
        )
    assert all(f"message {number}" in got for number in range(45))


def test_what_is_restored_stays_without_its_subscriptions(killed: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(killed, data_dir)
    shutil.rmtree(data_dir / "metadata")
    command = [sys.executable, "-m", "geminga", "bookie", "unrecorded", "restore"]
    restored = subprocess.run(
        [*command, "--data-dir", str(data_dir)], capture_output=True, text=True, timeout=30
    )
    assert f"{TOPIC}: geminga-restored" in restored.stdout
    settings = SETTINGS | {"brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "1"}
    settings["brokerDeleteInactiveTopicsFrequencySeconds"] = "1"
    with BrokerProcess(data_dir, settings=settings) as broker:
        # Another one, loaded by the same request, which goes: the round of deletions is over then.
        admin = Admin(broker.endpoints.web_url)
        for topic in (TOPIC, f"{TOPIC}-idle"):
            run_client(broker, "produce", topic, "-m", "more")
        eventually(lambda: f"{TOPIC}-idle" not in admin.request("GET", f"/admin/v2/{NAMESPACE}").json())
        got = run_client(broker, "consume", TOPIC, "-s", "geminga-restored", "-n", "46", "--timeout", "9s")
    assert all(f"message {number}" in got for number in range(45))


def test_metadata_of_a_copy_that_ran_on_is_refused_and_the_text_brings_all_back(
    killed: Path, tmp_path: Path
) -> None:
    """Its ledgers have the ids of this broker's, so by number and by record nothing would be missing."""
    data_dir, copy = tmp_path / "data", tmp_path / "copy"
    for path, topic, last in ((data_dir, "orders", 60), (copy, "invoices", 100)):
        shutil.copytree(killed, path)
        with BrokerProcess(path, settings=SETTINGS) as broker:
            lines = "".join(f"message {number}\n" for number in range(45, last))
            run_client(broker, "produce", f"persistent://public/default/{topic}", "--stdin", text=lines)
    own = data_dir / "metadata.own"
    (data_dir / "metadata").rename(own)
    shutil.copytree(copy / "metadata", data_dir / "metadata")
    before = contents(data_dir)
    restore = ["bookie", "unrecorded", "restore", "--data-dir", str(data_dir)]
    for text in (refused(data_dir), _failed(*restore), verified(data_dir)):
        assert "of two copies of one data directory that both ran on" in text
        assert f"move {data_dir}/metadata to another place" in text
    assert contents(data_dir) == before, "a refused start writes nothing"
    (data_dir / "metadata").rename(tmp_path / "elsewhere")
    assert "geminga " + " ".join(restore) in refused(data_dir)
    subprocess.run([sys.executable, "-m", "geminga", *restore], check=True, timeout=30)
    with BrokerProcess(data_dir) as broker:
        topics = Admin(broker.endpoints.web_url).request("GET", f"/admin/v2/{NAMESPACE}").json()
        got = run_client(
            broker, "consume", TOPIC, "-s", "s", "--from", "earliest", "-n", "60", "--timeout", "9s"
        )
    assert topics == [TOPIC]
    assert all(f"message {number}" in got for number in range(60))


def verified(data_dir: Path) -> str:
    """What `geminga bookie verify` says of a directory in which it finds damage."""
    run = subprocess.run(
        [sys.executable, "-m", "geminga", "bookie", "verify", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 1, run.stdout
    return run.stdout


def _failed(*arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "geminga", *arguments], capture_output=True, text=True, timeout=30
    )
    assert run.returncode, run.stdout
    return run.stderr


def test_the_printed_command_is_enough_with_directories_elsewhere_and_a_cluster_name(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in ("j 0", "j1", "l0", "l1")]
    settings = SETTINGS | {
        "clusterName": "east",
        "journalDirectories": f"{disks[0]},{disks[1]}",
        "ledgerDirectories": f"{disks[2]},{disks[3]}",
    }
    data_dir = tmp_path / "data"
    broker = BrokerProcess(data_dir, settings=settings)
    with contextlib.suppress(AssertionError), broker:
        run_client(broker, "produce", TOPIC, "--stdin", text="".join(f"message {n}\n" for n in range(45)))
        broker.kill()
    shutil.rmtree(data_dir / "metadata")
    text = refused(data_dir, "--conf", str(tmp_path / "data.conf"))
    [line] = [line for line in text.splitlines() if "unrecorded restore" in line]
    command = shlex.split(line.rpartition("  brings")[0])
    for times in range(2):
        restored = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=30
        )
        assert restored.returncode == 0, restored.stderr
        assert ("45 entries" if times == 0 else "every ledger") in restored.stdout
    with BrokerProcess(data_dir, settings=settings) as broker:
        got = run_client(
            broker, "consume", TOPIC, "-s", "s", "--from", "earliest", "-n", "45", "--timeout", "9s"
        )
    assert all(f"message {number}" in got for number in range(45))


def test_metadata_of_another_instance_is_refused_and_never_mended(killed: Path, tmp_path: Path) -> None:
    other = BrokerProcess(tmp_path / "other")
    with other:
        pass
    data_dir = tmp_path / "data"
    shutil.copytree(killed, data_dir)
    shutil.rmtree(data_dir / "metadata")
    shutil.copytree(other.data_dir / "metadata", data_dir / "metadata")
    before = contents(data_dir)
    text = refused(data_dir)
    restored = subprocess.run(
        [sys.executable, "-m", "geminga", "bookie", "unrecorded", "restore", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    for said in (text, restored.stderr):
        assert f"{data_dir}/bookie: the directory belongs to another instance than the metadata" in said
        assert "unrecorded restore" not in said
    assert restored.returncode == 1
    assert contents(data_dir) == before


def test_a_bookie_of_before_there_were_cookies_is_no_foreign_directory(killed: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(killed, data_dir)
    shutil.rmtree(data_dir / "metadata")
    (data_dir / "bookie" / "cookie").unlink()
    before = contents(data_dir)
    text = refused(data_dir)
    assert f"geminga bookie unrecorded restore --data-dir {data_dir}" in text
    assert contents(data_dir) == before
