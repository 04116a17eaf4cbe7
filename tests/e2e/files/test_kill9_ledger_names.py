"""A broker is killed, and its metadata deleted: the bookie's files still tell whose every ledger is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from geminga.bookie.offline.ledger_names import LedgerName, ledger_names
from geminga.metadata import records
from geminga.metadata.records import LedgerRecord, decode
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.pipeline.buckets.rescue import take_inventory
from geminga.pipeline.buckets.rescue_files import plan
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually
from tests.fixtures.clients import Sending, Writer, client_of
from tests.fixtures.delays_written import write_delays
from tests.fixtures.expectation import Expectation
from tests.fixtures.write_data import settings_of

PLAIN = "persistent://fixture/data/plain"
DELAYED = "persistent://fixture/data/delayed"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker with topics, cursors and buckets left, killed while its entry log was open; the rest of
    its entries is in the journal.
    """
    directory = tmp_path_factory.mktemp("killed")
    settings = settings_of("own", 1, ["flushInterval=300"])
    broker = BrokerProcess(directory / "data", settings=settings)
    endpoints = broker.start()
    try:
        with client_of(endpoints.service_url, directory / "client.log") as client:
            writer = Writer(client, Admin(endpoints.web_url), Expectation("", settings))
            writer.put("/admin/v2/tenants/fixture", {"allowedClusters": ["standalone"]})
            writer.put("/admin/v2/namespaces/fixture/data")
            write_delays(writer, is_shared=False, is_sealed=True)
            writer.publish(PLAIN, [Sending(b"%d" % number) for number in range(35)])
            writer.acknowledge(PLAIN, "shared", "Shared", lambda number: number % 3 == 1)
            eventually(
                lambda: "cursor" in purposes(named(directory / "data"), PLAIN), what="a cursor's ledger"
            )
    finally:
        broker.kill()
    return directory / "data"


def named(data: Path) -> dict[int, LedgerName]:
    bookie = data / "bookie"
    return ledger_names(RealDisk(), [str(bookie / "journal")], [str(bookie / "entry-logs")])


def purposes(names: dict[int, LedgerName], topic: str) -> set[str]:
    path = records.managed_ledger_path(TopicName.parse(topic))
    return {name.purpose for name in names.values() if name.topic == path}


def recorded(data: Path) -> dict[int, LedgerName]:
    """By the metadata."""
    values = RocksKeyValue(str(data / "metadata"), read_only=True)
    try:
        store = MetadataStore(values)
        found = {}
        for component in store.children(records.LEDGERS):
            ledger_id = records.ledger_id_of(component)
            path = records.ledger_path(ledger_id)
            stored = store.get(path)
            assert stored is not None
            record = decode(LedgerRecord, stored.value, path)
            found[ledger_id] = LedgerName(record.purpose, record.topic)
    finally:
        values.close()
    return found


def held(data: Path) -> set[int]:
    """The ledgers of which an entry is in any file."""
    slices = plan(RealDisk(), [str(data)]).slices
    return {ledger_id for part in slices for ledger_id in take_inventory(RealDisk(), part).entries}


def check_names(data: Path) -> None:
    """Without metadata, and without index too."""
    truth, ledgers = recorded(data), held(data)
    shutil.rmtree(data / "metadata")
    for gone in ("metadata", "index"):
        shutil.rmtree(data / gone, ignore_errors=True)
        names = named(data)
        assert ledgers <= names.keys()
        assert {id_: names[id_] for id_ in ledgers & truth.keys()} == {
            id_: truth[id_] for id_ in ledgers & truth.keys()
        }
        assert purposes(names, DELAYED) == {"data", "cursor", "bucket"}
        assert purposes(names, PLAIN) == {"data", "cursor"}


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "data"))


def test_every_ledger_is_named_after_a_kill(data: Path) -> None:
    check_names(data)


def test_every_ledger_is_named_once_a_recovery_has_moved_its_entries(data: Path) -> None:
    broker = BrokerProcess(data, settings=settings_of("own", 1))
    broker.start()
    broker.kill()
    for journal in (data / "bookie" / "journal").iterdir():
        journal.unlink()  # the next bytes to go: what recovery wrote has to be enough
    check_names(data)
