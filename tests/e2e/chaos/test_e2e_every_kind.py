"""Each kind of each place is hit at least once: those that would end a broker by real files in this process,
all others in a running broker.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from geminga.chaos.disk import faulty_disk, faulty_index
from geminga.chaos.disk.faulty_disk import FaultyDisk
from geminga.chaos.disk.faulty_index import FaultyIndexDatabase
from geminga.chaos.rules import killing
from geminga.chaos.rules.can_hit import operations_of
from geminga.chaos.rules.faults import Faults
from geminga.chaos.rules.killing import Points
from geminga.chaos.rules.places import PLACES
from geminga.chaos.rules.rule import parse_rule
from geminga.clock import RealClock
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.real_file import RealFile
from geminga.wire import client_commands, encoder
from tests.e2e.binary_session import BinarySession
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.chaos import conftest as e2e
from tests.e2e.chaos.test_e2e_delay_faults import Delayed
from tests.e2e.delays.test_e2e_delayed_index import SETTINGS
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
SUFFIXES: Final = {"journal": ".journal", "entry-log": ".log"}
NEEDED: Final[dict[str, Any]] = {
    "latency_ms": ("latencyMs", 1),
    "bytes_per_s": ("bytesPerS", 1000),
    "slice_bytes": ("sliceBytes", 4),
    "command": ("command", "LOOKUP"),
    "error": ("error", "ServiceNotReady"),
    "status": ("status", 503),
    "step_ms": ("stepMs", 1),
    "ppm": ("ppm", 1),
}
IN_FILES: Final = [
    (place, kind, operation)
    for place in ("journal", "entry-log", "index")
    for kind in PLACES[place]
    for operation in operations_of(place, kind)
]
AT_BROKER: Final = [
    f"{place}/{kind}"
    for place, kinds in PLACES.items()
    for kind in kinds
    if place not in {"journal", "entry-log", "index"} and f"{place}/{kind}" != "process/kill"
]


class Killed(BaseException):
    """In the place of SIGKILL."""


@pytest.fixture
def unkilled(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill() -> None:
        raise Killed

    for module in (killing, faulty_disk, faulty_index):
        monkeypatch.setattr(module, "kill_process", kill)


def needed(place: str, kind: str) -> dict[str, Any]:
    return dict(NEEDED[name] for name in PLACES[place][kind].needs if name in NEEDED)


def file_operations(faults: Faults, path: Path, place: str) -> list[Callable[[], object]]:
    """All that a broker does with such a file."""
    disk = FaultyDisk(faults)
    if place == "index":
        index = FaultyIndexDatabase(RealDisk(), str(path), faults=faults)
        return [
            lambda: index.get(b"a"),
            index.flush,
            lambda: index.write([(b"a", b"b")], sync=True),
            index.close,
            lambda: FaultyIndexDatabase(RealDisk(), str(path), faults=faults).close(),
        ]
    file = disk.create(str(path / f"1{SUFFIXES[place]}"))
    return [
        lambda: file.allocate(100),
        lambda: file.pread(0, 1),
        file.sync,
        lambda: disk.free_bytes(str(path)),
        lambda: file.pwrite_many(0, [b"ab"]),
        lambda: file.write_synced(0, [b"ab"]),
        file.close,
    ]


@pytest.mark.parametrize(("place", "kind", "operation"), IN_FILES)
@pytest.mark.usefixtures("unkilled")
def test_a_rule_of_files_hits_each_operation_that_it_may_name(
    tmp_path: Path, place: str, kind: str, operation: str
) -> None:
    faults = Faults(RealClock())
    operations = file_operations(faults, tmp_path, place)
    body = {"place": place, "kind": kind, "operation": operation, **needed(place, kind)}
    faults.set(parse_rule(body, at_start=True))
    effects = 0
    for act in operations:
        try:
            effects += act() == 0  # free bytes
        except (StorageError, Killed):
            effects += 1
    assert next(iter(faults.hits()))[2] >= 1
    assert effects or kind == "slow"


@pytest.mark.usefixtures("unkilled")
@pytest.mark.parametrize(
    ("rule", "failure", "left"),
    [
        ({"kind": "slow", "latencyMs": 1}, "nothing", b"new"),
        ({"kind": "eio", "operation": "write"}, "cannot write", b"old"),
        ({"kind": "eio", "operation": "sync"}, "cannot sync", b"new"),
        ({"kind": "torn"}, "killed", b"nld"),
        ({"place": "process", "kind": "kill", "name": "journal-written"}, "killed", b"new"),
        ({"place": "process", "kind": "kill", "name": "journal-synced"}, "killed", b"new"),
    ],
)
def test_rules_of_writes_and_of_syncs_hit_the_call_that_does_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], failure: str, left: bytes
) -> None:
    """A failed sync leaves what was written where readers see it, and is not followed by another one."""
    faults = Faults(RealClock())
    file = FaultyDisk(faults).create(str(tmp_path / "1.journal"))
    file.write_synced(0, [b"o", b"ld"])
    assert list(faults.hits()) == []
    syncs: list[str] = []
    monkeypatch.setattr(RealFile, "sync", lambda file: syncs.append(file.path))
    faults.set(parse_rule({"place": "journal", **rule}))
    said = "nothing"
    try:
        file.write_synced(0, [b"ne", b"w"])
    except (StorageError, Killed) as error:
        said = str(error) or "killed"
    assert failure in said
    assert next(iter(faults.hits()))[2] == (2 if rule["kind"] == "slow" else 1)
    assert (tmp_path / "1.journal").read_bytes() == left
    is_synced = failure == "nothing" or rule["kind"] == "torn" or rule.get("name") == "journal-synced"
    assert len(syncs) == is_synced
    file.close()


@pytest.mark.usefixtures("unkilled")
def test_a_rule_kills_at_its_point() -> None:
    faults = Faults(RealClock())
    faults.set(parse_rule({"place": "process", "kind": "kill", "name": "receipt-sent"}))
    points = Points(faults.doors["process"])
    points.passed("journal-synced")
    with pytest.raises(Killed):
        points.passed("receipt-sent")
    assert list(faults.hits()) == [("process", "kill", 1)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("kinds") / "data"
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=["--chaos"]) as process:
        yield process


@pytest.fixture
def rules(broker: BrokerProcess) -> Iterator[e2e.Faults]:
    found = e2e.Faults(broker)
    yield found
    found.clear_all()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    made = pulsar.Client(broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def test_the_places_are_listed_with_their_fields_as_a_request_has_them(rules: e2e.Faults) -> None:
    listed = rules.command("places").splitlines()
    assert [line.partition(":")[0] for line in listed if line[0] != " "] == [
        f"{place}/{kind}" for place, kinds in PLACES.items() for kind in kinds
    ]
    for line in (
        "    needs sliceBytes",
        "    commands of wire/error: PARTITIONED_METADATA, LOOKUP, PRODUCER, SEND, ",
        "    operations of journal/torn: write",
        "    takes after, count, durationMs, jitterMs, keep, method, path, probability, seed",
    ):
        assert any(one.startswith(line) for one in listed), line


@pytest.mark.parametrize("fault", AT_BROKER)
def test_a_kind_hits_in_a_running_broker(rules: e2e.Faults, client: pulsar.Client, fault: str) -> None:
    place, _, kind = fault.partition("/")
    fields = needed(place, kind)
    if place == "wire":
        with BinarySession(rules.broker.endpoints.binary_address) as session:
            session.connect()
            # Once: the other client of this broker sends a PING every 30 s, too.
            rule = rules.set(fault, **{"command": "PING", "direction": "in", "count": 1, **fields})
            session.send_bytes(encoder.ping() + client_commands.lookup(1, "persistent://public/default/any"))
            eventually(lambda: rules.state(rule)["hits"] == 1)
    elif place == "metadata":
        rule = rules.set(fault, path="/namespaces/public", count=1, **fields)
        rules.web.request("PUT", f"/admin/v2/namespaces/public/{kind}")
    elif place == "admin":
        rule = rules.set(fault, path="/metrics", **fields)
        with contextlib.suppress(http.client.HTTPException, OSError):
            rules.web.request("GET", "/metrics")
    elif fault == "process/pause" or place == "clock":
        rule = rules.set(fault, **fields)
    else:
        topic = f"persistent://public/default/{place}-{kind}"
        taken = {name: {"topic": topic, "subscription": "s"}[name] for name in PLACES[place][kind].needs}
        if fault == "bucket/fail":
            rule = rules.set(fault, topic=topic, count=1)
        delayed = Delayed(rules, client, topic, wait_ms=3_600_000)
        delayed.wait_sealed()
        if fault != "bucket/fail":
            rule = rules.set(fault, **taken)
    assert rules.state(rule)["hits"] == 1
