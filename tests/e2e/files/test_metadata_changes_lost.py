"""Metadata that lacks changes of which no ledger tells: a broker refuses it, and keeps all messages once an
operator has accepted it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from geminga.cli.arguments.parser import EXIT_FAILED
from geminga.cli.main import main
from geminga.errors import StorageError
from geminga.managed_ledger.cursor.system_cursors import HOLDER
from geminga.managed_ledger.restore import Restorer
from geminga.metadata.change_note import CHANGE_NOTE, encode_note, read_note
from geminga.storage.disk import RealDisk
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, run_client
from tests.e2e.files.test_old_metadata_refused import contents, refused, verified
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "1",
    "brokerDeleteInactiveTopicsFrequencySeconds": "1",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "1",
}
TOPIC = "persistent://public/default/orders"
TOPICS = "/admin/v2/persistent/public/default"
CHANGES = {
    "subscription": ("PUT", f"{TOPICS}/orders/subscription/keeper", None),
    "retention": (
        "POST",
        "/admin/v2/namespaces/public/default/retention",
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    ),
    "compaction": ("PUT", f"{TOPICS}/orders/compaction", None),
}


class Killed(NamedTuple):
    """The data of a broker that was killed behind three changes and then five receipts."""

    data_dir: Path
    lengths: dict[str, int]
    """The length of the metadata's log right before each change."""


def wal_of(data_dir: Path) -> Path:
    [wal] = (data_dir / "metadata").glob("*.log")
    return wal


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    # No check may come before the changes: a topic without a subscription may lose its messages.
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data")
    broker.start()
    try:
        admin, lengths = Admin(broker.endpoints.web_url), {}
        run_client(broker, "produce", TOPIC, "-m", "message 0")
        for name, (method, path, body) in CHANGES.items():
            lengths[name] = wal_of(broker.data_dir).stat().st_size
            assert admin.request(method, path, body).status < 300
        run_client(broker, "produce", TOPIC, "--stdin", text="".join(f"message {n}\n" for n in range(1, 5)))
    finally:
        broker.kill()
    return Killed(broker.data_dir, lengths)


@pytest.mark.parametrize("first_lost", CHANGES)
def test_a_log_that_was_cut_before_a_change_is_refused(
    killed: Killed, tmp_path: Path, first_lost: str
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(killed.data_dir, data_dir)
    os.truncate(wal_of(data_dir), killed.lengths[first_lost])
    before = contents(data_dir)
    text = refused(data_dir)
    assert f"{data_dir}/metadata: the metadata is behind the bookie's files" in text
    assert "It has no record of" not in text, "the ledgers show nothing"
    assert f"geminga bookie unrecorded restore --data-dir {data_dir}  gives each topic" in text
    assert "it lacks its last" in verified(data_dir)
    assert contents(data_dir) == before, "a refused start writes nothing"


def test_an_accepted_state_keeps_all_messages_without_the_lost_changes(
    killed: Killed, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(killed.data_dir, data_dir)
    os.truncate(wal_of(data_dir), min(killed.lengths.values()))
    command = [sys.executable, "-m", "geminga", "bookie", "unrecorded", "restore", "--data-dir"]
    for said in (f"{TOPIC}: geminga-restored", "every ledger of the bookie has a record"):
        restored = subprocess.run([*command, str(data_dir)], capture_output=True, text=True, timeout=30)
        assert (restored.returncode, said in restored.stdout) == (0, True), restored
        assert ("set them again" in restored.stdout) == ("geminga-restored" in said)
    with BrokerProcess(data_dir, settings=SETTINGS) as broker:
        admin = Admin(broker.endpoints.web_url)
        run_client(broker, "produce", f"{TOPIC}-idle", "-m", "idle")
        # Its ledgers and then the topic itself go: the checks have been made.
        eventually(lambda: f"{TOPIC}-idle" not in admin.get(TOPICS).json())
        got = run_client(broker, "consume", TOPIC, "-s", "geminga-restored", "-n", "5", "--timeout", "9s")
    assert all(f"message {number}" in got for number in range(5))


@pytest.mark.parametrize("error", [StorageError("no space"), KeyboardInterrupt()])
def test_a_restore_that_was_interrupted_is_asked_for_again(
    killed: Killed, tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own changes do not count as those that are missing."""
    data_dir = tmp_path / "data"
    shutil.copytree(killed.data_dir, data_dir)
    os.truncate(wal_of(data_dir), killed.lengths["compaction"])
    restore = Restorer.restore

    async def write_and_fail(restorer: Restorer, path: str, *arguments: Any, **options: Any) -> None:
        for number in range(1, 100):
            await restorer.give_ids_behind(10_000 * number)
        await restore(restorer, path, *arguments, **options)
        raise error

    arguments = ["bookie", "unrecorded", "restore", "--data-dir", str(data_dir)]
    with monkeypatch.context() as patch:
        patch.setattr(Restorer, "restore", write_and_fail)
        assert main(arguments) in (EXIT_FAILED, 130)
    assert "was interrupted: repeat it" in refused(data_dir)
    put_back(killed, data_dir)
    with BrokerProcess(data_dir, settings=SETTINGS) as broker:
        subscriptions = Admin(broker.endpoints.web_url).get(f"{TOPICS}/orders/subscriptions").json()
    assert subscriptions == ["keeper"], "the right metadata lacks nothing, whatever was interrupted before"


@pytest.mark.parametrize("cut_at", [*CHANGES, ""])
def test_behind_a_restore_other_metadata_is_judged_by_what_was_before(
    killed: Killed, tmp_path: Path, cut_at: str
) -> None:
    """A copy that is older still is refused, and the right metadata is not."""
    data_dir = tmp_path / "data"
    shutil.copytree(killed.data_dir, data_dir)
    if cut_at == "retention":
        shutil.rmtree(data_dir / "metadata")
    else:
        os.truncate(wal_of(data_dir), killed.lengths["subscription"])
    restore = ["bookie", "unrecorded", "restore", "--data-dir", str(data_dir)]
    assert main(restore) == 0
    put_back(killed, data_dir)
    if cut_at:
        os.truncate(wal_of(data_dir), killed.lengths[cut_at])
        assert "It lacks its last" in refused(data_dir)
        assert main(restore) == 0
    with BrokerProcess(data_dir, settings=SETTINGS) as broker:
        subscriptions = Admin(broker.endpoints.web_url).get(f"{TOPICS}/orders/subscriptions").json()
    assert ("keeper" in subscriptions) == (cut_at != "subscription")
    assert (HOLDER in subscriptions) == (cut_at != "")


async def _fail(*_: Any, **__: Any) -> None:
    raise StorageError("no space")


def put_back(killed: Killed, data_dir: Path) -> None:
    shutil.rmtree(data_dir / "metadata")
    shutil.copytree(killed.data_dir / "metadata", data_dir / "metadata")


def test_a_restore_that_was_interrupted_may_be_repeated(killed: Killed, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(killed.data_dir, data_dir)
    os.truncate(wal_of(data_dir), killed.lengths["compaction"])
    disk, arguments = RealDisk(), ["bookie", "unrecorded", "restore", "--data-dir", str(data_dir)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Restorer, "restore", _fail)
        assert main(arguments) == EXIT_FAILED
    assert main(arguments) == 0
    noted = read_note(disk, str(data_dir / "bookie"))
    assert noted is not None
    assert not noted.restoring
    assert noted.before is not None
    with BrokerProcess(data_dir, settings=SETTINGS) as broker:
        subscriptions = Admin(broker.endpoints.web_url).get(f"{TOPICS}/orders/subscriptions").json()
    assert "geminga-restored" in subscriptions


def test_no_policy_takes_what_was_restored(tmp_path: Path) -> None:
    """A policy of older metadata may have been lifted in the changes that it lacks."""
    namespace = "/admin/v2/namespaces/public/default"
    with BrokerProcess(tmp_path / "data", arguments=["--clock", "virtual"]) as broker:
        admin = Admin(broker.endpoints.web_url)
        for name in ("s", HOLDER, f"{HOLDER}-2"):
            assert admin.put(f"{TOPICS}/orders/subscription/{name}").status == 204
        run_client(broker, "produce", TOPIC, *(f"-mmessage {number}" for number in range(3)))
        assert admin.post(f"{namespace}/messageTTL", 10).status == 204
        assert admin.post(f"{namespace}/subscriptionExpirationTime", 60).status == 204
        for kind in ("destination_storage", "message_age"):
            quota = {"limitSize": 1, "limitTime": 1, "policy": "consumer_backlog_eviction"}
            assert admin.post(f"{namespace}/backlogQuota?backlogQuotaType={kind}", quota).status == 204
        for minutes, left in (
            (10, {"s": 0, HOLDER: 3, f"{HOLDER}-2": 3}),
            (90, {HOLDER: 3, f"{HOLDER}-2": 3}),
        ):
            assert admin.post("/geminga/clock", {"ms": minutes * 60_000}).status == 200
            stats = admin.get(f"{TOPICS}/orders/stats").json()["subscriptions"]
            assert {name: of["msgBacklog"] for name, of in stats.items()} == left


@pytest.mark.parametrize("state", ["torn", "older", "gone"])
def test_a_note_that_a_power_cut_left_changes_nothing(killed: Killed, tmp_path: Path, state: str) -> None:
    data_dir, disk = tmp_path / "data", RealDisk()
    shutil.copytree(killed.data_dir, data_dir)
    path = data_dir / "bookie" / CHANGE_NOTE
    noted = read_note(disk, str(path.parent))
    assert noted is not None
    whole, older = path.read_bytes(), encode_note(noted._replace(history=noted.history._replace(changes=1)))
    path.write_bytes({"torn": whole[:-9] + older[-9:], "older": older, "gone": b""}[state])
    assert (read_note(disk, str(path.parent)) is not None) == (state == "older")
    with BrokerProcess(data_dir) as broker:
        run_client(broker, "consume", TOPIC, "-s", "keeper", "-n", "4", "--timeout", "9s")
    after = read_note(disk, str(path.parent))
    assert after is not None
    assert after.history.changes > noted.history.changes
