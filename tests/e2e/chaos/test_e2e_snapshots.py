"""Snapshots of a running broker: what a client finds after a restore or a reset, and after a crash in one."""

from __future__ import annotations

import datetime
import json
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geminga.chaos.rules.places import POINTS
from geminga.testing.requests import Refused, ask
from tests.budget import IS_NIGHT
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.chaos.conftest import Faults
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
STEPS = [name for name in POINTS if name.startswith("restore-")]
# Each costs a start. Every operation on the disk has its crash in `tests/server/snapshots/test_swap.py`.
FEW_STEPS = ("restore-moving", "restore-moved-in", "restore-opened", "restore-committed")
COMMITTED = "restore-committed"


class Kept:
    """A broker with a virtual clock, the official client, and snapshots."""

    def __init__(self, directory: Path, broker: BrokerProcess) -> None:
        self.directory = directory
        self.broker = broker

    def path(self, name: str) -> Path:
        return self.directory / name

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return ask(self.broker.endpoints.web_url, method, f"/geminga/{path}", body)

    def save(self, name: str) -> None:
        self.ask("POST", "snapshots/save", {"directory": str(self.path(name))})

    def restore(self, name: str) -> Any:
        """The report of it."""
        return self.ask("POST", "snapshots/restore", {"directory": str(self.path(name))})["last"]

    def reset(self) -> Any:
        return self.ask("POST", "snapshots/reset")["last"]

    def command(self, *arguments: str, code: int = 0) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "geminga", *arguments, "--url", self.broker.endpoints.web_url],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert run.returncode == code, run
        return run.stdout + run.stderr

    @contextmanager
    def client(self) -> Iterator[pulsar.Client]:
        url = self.broker.endpoints.service_url
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        with closing(pulsar.Client(url, logger=logger)) as client:
            yield client

    def publish(self, topic: str, *payloads: bytes, **properties: Any) -> None:
        with self.client() as client:
            producer = client.create_producer(topic)
            for payload in payloads:
                producer.send(payload, **properties)

    def stored(self, topic: str) -> list[bytes]:
        """All messages that the topic holds."""
        found = []
        with self.client() as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(5000).data())
        return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    directory = tmp_path_factory.mktemp("snapshots")
    # A test may kill it.
    broker = BrokerProcess(directory / "data", arguments=["--chaos", "--clock", "virtual"])
    broker.start()
    yield Kept(directory, broker)
    if broker.is_running():
        assert broker.stop() == 0


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The next messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(5000)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def has_nothing(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(100)
    except pulsar.Timeout:
        return True
    return False


def test_a_restore_brings_back_messages_and_acknowledgements(kept: Kept) -> None:
    topic = "persistent://public/default/orders"
    with kept.client() as client:
        consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
        kept.publish(topic, b"0", b"1", b"2")
        assert received(consumer, 2) == [b"0", b"1"]
        eventually(lambda: backlog(kept, topic) == 1)
        kept.save("orders")
        kept.publish(topic, b"3")
        assert received(consumer, 2) == [b"2", b"3"]
    assert "restored" in kept.command("snapshot", "restore", str(kept.path("orders")))
    assert kept.stored(topic) == [b"0", b"1", b"2"]
    with kept.client() as client:
        consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
        assert received(consumer, 1) == [b"2"]
        assert has_nothing(consumer)


def backlog(kept: Kept, topic: str) -> int:
    path = topic.replace("://", "/")
    stats = ask(kept.broker.endpoints.web_url, "GET", f"/admin/v2/{path}/stats")
    return int(stats["subscriptions"]["app"]["msgBacklog"])


def test_a_reset_leaves_a_new_broker(kept: Kept) -> None:
    web_url = kept.broker.endpoints.web_url
    ask(web_url, "PUT", "/admin/v2/tenants/shop", {"allowedClusters": ["standalone"]})
    ask(web_url, "PUT", "/admin/v2/namespaces/shop/orders", {})
    topic = "persistent://shop/orders/t"
    kept.publish(topic, b"before")
    before = last_id(kept, topic)
    kept.command("clock", "advance", "30d")
    assert kept.command("snapshot", "reset").startswith("reset in ")
    assert ask(web_url, "GET", "/admin/v2/tenants") == ["public", "pulsar"]
    kinds = [(event["kind"], event.get("text", "")) for event in kept.ask("GET", "events")]
    assert kinds[-2:] == [("restored", "reset"), ("started", "")]
    clock = kept.ask("GET", "clock")
    assert clock["clock"] == "virtual"
    assert clock["now_ms"] - clock["wall_ms"] < 1000
    topic = "persistent://public/default/t"
    kept.publish(topic, b"after")
    assert kept.stored(topic) == [b"after"]
    assert last_id(kept, topic) > before, "or clients would take new messages for old ones"


def last_id(kept: Kept, topic: str) -> int:
    """The number of the topic's last ledger."""
    path = topic.replace("://", "/")
    answer = ask(kept.broker.endpoints.web_url, "GET", f"/admin/v2/{path}/internalStats")
    return int(answer["ledgers"][-1]["ledgerId"])


def test_the_clock_goes_back_with_its_delayed_messages(kept: Kept) -> None:
    topic = "persistent://public/default/reminders"
    with kept.client() as client:
        consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
        kept.publish(topic, b"renew", deliver_after=datetime.timedelta(days=30))
        kept.command("clock", "advance", "10d")
        saved_ms = kept.ask("GET", "clock")["now_ms"]
        kept.save("reminders")
        kept.command("clock", "advance", "25d")
        assert received(consumer, 1) == [b"renew"]
    assert kept.restore("reminders")["outcome"] == "done"
    assert 0 <= kept.ask("GET", "clock")["now_ms"] - saved_ms < 60_000
    with kept.client() as client:
        consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
        kept.command("clock", "advance", "19d")
        assert has_nothing(consumer)
        kept.command("clock", "advance", "1d")
        assert received(consumer, 1) == [b"renew"]


def test_a_virtual_clock_begins_where_it_was_saved(kept: Kept) -> None:
    kept.save("old")
    path = kept.path("old") / "snapshot.json"
    manifest = json.loads(path.read_bytes())
    long_ago_ms = manifest["shown_ms"] - 400 * 86_400_000
    path.write_text(json.dumps({**manifest, "shown_ms": long_ago_ms}))
    for start_again in (False, True):
        if start_again:
            assert kept.broker.stop() == 0
            kept.broker.start()
        else:
            assert kept.restore("old")["outcome"] == "done"
        assert 0 <= kept.ask("GET", "clock")["now_ms"] - long_ago_ms < 60_000


class Publisher(threading.Thread):
    """Publishes until `ended`; notes what had a receipt."""

    def __init__(self, kept: Kept, topic: str) -> None:
        super().__init__(daemon=True)
        self._kept = kept
        self._topic = topic
        self.ended = threading.Event()
        self.confirmed: list[bytes] = []
        self.error: Exception | None = None
        self.begun = 0
        """Messages whose publishing has begun."""

    def run(self) -> None:
        with self._kept.client() as client:
            producer = client.create_producer(self._topic, batching_enabled=False)
            while not self.ended.is_set():
                payload = b"%d" % self.begun
                self.begun += 1
                producer.send(payload)
                self.confirmed.append(payload)


def test_connected_clients_go_on_after_a_restore(kept: Kept) -> None:
    topic = "persistent://public/default/live"
    with kept.client() as client:
        consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
        publisher = Publisher(kept, topic)
        publisher.start()
        assert received(consumer, 20)
        before = list(publisher.confirmed)
        kept.save("live")
        assert received(consumer, 20)
        assert kept.restore("live")["outcome"] == "done"
        # What was confirmed between the save and the restore is gone, what begins now has to stay.
        first_after = publisher.begun
        eventually(lambda: len(publisher.confirmed) > first_after + 20)
        publisher.ended.set()
        publisher.join(30)
        assert not publisher.is_alive()
        assert received(consumer, 20), "the consumer has come back by itself"
    stored = kept.stored(topic)
    assert set(before) <= set(stored)
    after = [payload for payload in publisher.confirmed if int(payload) >= first_after]
    assert len(after) >= 20
    assert set(after) <= set(stored)


def test_what_is_no_snapshot_of_this_broker_is_refused(kept: Kept, tmp_path: Path) -> None:
    kept.save("whole")
    whole = kept.path("whole")
    journal = "bookie/journal"

    def changed(name: str) -> Path:
        return Path(shutil.copytree(whole, tmp_path / name))

    def edit(name: str, **fields: object) -> Path:
        path = changed(name)
        manifest = json.loads((path / "snapshot.json").read_bytes())
        (path / "snapshot.json").write_text(json.dumps({**manifest, **fields}))
        return path

    short, missing, flipped, long = map(changed, ("short", "missing", "flipped", "long"))
    file = max((short / "data" / journal).iterdir(), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    (missing / "data" / journal / file.name).unlink()
    damaged = bytearray((flipped / "data" / journal / file.name).read_bytes())
    damaged[100] ^= 1
    (flipped / "data" / journal / file.name).write_bytes(damaged)
    with (long / "data" / journal / file.name).open("ab") as journal_file:
        journal_file.write(b"x")
    outside = [{"path": "metadata/../../x", "bytes": 0, "crc32": 0}]
    (tmp_path / "empty").mkdir()
    topic = "persistent://public/default/refused"
    kept.publish(topic, b"x")
    for directory, reason in (
        (tmp_path / "none", "is not a directory"),
        (tmp_path / "empty", "it has no snapshot.json"),
        (whole / "data", "is no snapshot but a data directory"),
        (edit("newer", format_version=2), "written by a newer version"),
        (edit("newer-data", directory_format=99), "holds a data directory of format 99"),
        (edit("real", clock="real"), "start a broker with --clock real"),
        (edit("other", cluster="east"), "of cluster 'east'"),
        (edit("odd", files=7), "cannot be read"),
        (edit("outside", files=outside), "which is no file of a snapshot"),
        (short, ": the snapshot is half-copied"),
        (missing, "is missing: the snapshot is half-copied"),
        (flipped, "has other bytes than it was saved with"),
        (long, f"has {file.stat().st_size + 2} bytes, and had"),
    ):
        with pytest.raises(Refused) as refused:
            kept.ask("POST", "snapshots/restore", {"directory": str(directory)})
        assert f"409: {directory}" in str(refused.value)
        assert reason in str(refused.value)
    for directory in ("relative", str(kept.broker.data_dir / "inside"), str(whole)):
        with pytest.raises(Refused, match="409"):
            kept.ask("POST", "snapshots/save", {"directory": directory})
    assert kept.stored(topic) == [b"x"], "nothing has changed"
    assert not (kept.broker.data_dir / "swap").exists()


def test_a_state_that_does_not_open_is_undone(kept: Kept) -> None:
    topic = "persistent://public/default/undone"
    kept.save("closed")
    kept.publish(topic, b"later")
    content = b"MANIFEST-000099\n"
    (kept.path("closed") / "data" / "metadata" / "CURRENT").write_bytes(content)
    path = kept.path("closed") / "snapshot.json"
    manifest = json.loads(path.read_bytes())
    for file in manifest["files"]:
        if file["path"] == "metadata/CURRENT":
            file |= {"bytes": len(content), "crc32": zlib.crc32(content)}
    path.write_text(json.dumps(manifest))
    last = kept.restore("closed")
    assert last["outcome"] == "undone"
    assert "MANIFEST-000099" in last["reason"]
    assert kept.stored(topic) == [b"later"]
    assert "the state from before is back" in kept.command("snapshot", "restore", str(path.parent), code=1)
    told = [event for event in kept.ask("GET", "events") if event["kind"] == "restore-undone"]
    assert "MANIFEST-000099" in told[-1]["text"]


@pytest.fixture(scope="module")
def marked(kept: Kept) -> str:
    """A topic that is in the snapshot "marked" with one message, and has another one since."""
    topic = "persistent://public/default/marked"
    kept.publish(topic, b"saved")
    kept.save("marked")
    return topic


@pytest.mark.parametrize("step", STEPS if IS_NIGHT else FEW_STEPS)
def test_a_crash_in_a_restore_leaves_one_state(kept: Kept, marked: str, step: str) -> None:
    kept.publish(marked, b"later")
    before = kept.stored(marked)
    Faults(kept.broker).set("process/kill", name=step)
    with pytest.raises((OSError, Refused)):
        kept.restore("marked")
    assert kept.broker.wait() == -signal.SIGKILL
    kept.broker.start()
    last = kept.ask("GET", "snapshots")["last"]
    if step == COMMITTED:
        assert kept.stored(marked) == [b"saved"]
    else:
        assert kept.stored(marked) == before
    if step in ("restore-copied", COMMITTED):
        assert last is None
    else:
        assert last["outcome"] == "undone"
        assert "was interrupted: the state from before it is back" in kept.broker.log_tail()
    assert not (kept.broker.data_dir / "swap").exists()


def test_a_folder_that_is_no_data_directory_keeps_its_files(tmp_path: Path) -> None:
    mine = tmp_path / "home" / "swap" / "mine"
    mine.parent.mkdir(parents=True)
    mine.touch()
    command = [sys.executable, "-m", "geminga", "standalone", "--port", "0", "--web-port", "0"]
    run = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "home")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 4
    assert "not a data directory of Geminga (it has 'swap'" in run.stderr
    assert mine.exists()


def test_all_of_those_steps_are_points() -> None:
    assert set(FEW_STEPS) <= set(STEPS)
    assert len(STEPS) == 7


def test_only_a_save_goes_without_chaos(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        kept = Kept(tmp_path, broker)
        kept.save("plain")
        for call in (lambda: kept.restore("plain"), kept.reset):
            with pytest.raises(Refused, match="only done where the broker was started with --chaos"):
                call()
