"""The delivery log of a broker: every event of a small workload, in order, and what an audit makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from geminga.delivery_log.log_format import Kind, segments
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.binary_session import BinarySession
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import now_ms, place, receive

pytestmark = pytest.mark.geminga_only
T = "persistent://public/default/t"


@pytest.fixture
def broker_with_log(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "gemingaDeliveryLogDirectory": str(tmp_path / "log"),
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        "brokerDeduplicationEnabled": "true",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        yield broker


def logged(directory: Path) -> list[dict[str, Any]]:
    """All events with names instead of places."""
    found = []
    for path in sorted(directory.iterdir()):
        for segment in segments(path.read_bytes()):
            tables = {
                "topic": segment.topics,
                "subscription": segment.subscriptions,
                "client": segment.clients,
            }
            columns = {name: column.tolist() for name, column in segment.columns.items()}
            for row in zip(*columns.values(), strict=True):
                event = dict(zip(columns, row, strict=True))
                for name, names in tables.items():
                    event[name] = names[event[name]] if event[name] >= 0 else None
                found.append(event)
    return found


def of(events: list[dict[str, Any]], kind: Kind, *columns: str, **wanted: Any) -> list[Any]:
    fitting = [e for e in events if e["kind"] == kind and all(e[k] == v for k, v in wanted.items())]
    return [tuple(event[column] for column in columns) for event in fitting]


def test_everything_is_in_the_log(broker_with_log: BrokerProcess, tmp_path: Path) -> None:
    broker = broker_with_log
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(broker.endpoints.service_url, logger=logger)
    shared = client.subscribe(
        T,
        "shared",
        consumer_type=ConsumerType.Shared,
        consumer_name="c1",
        negative_ack_redelivery_delay_ms=10,
        batch_index_ack_enabled=True,
    )
    single = client.subscribe(T, "single", consumer_name="c2")
    producer = client.create_producer(
        T, producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=1000
    )
    for number in range(3):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    alone = client.create_producer(T, producer_name="q", batching_enabled=False)
    alone.send(b"alone", sequence_id=7)
    alone.send(b"alone", sequence_id=7)
    due_ms = now_ms() + 300
    alone.send(b"later", deliver_at=due_ms, sequence_id=8)
    got = [receive(shared) for _ in range(4)]
    shared.acknowledge(got[1])
    got.append(receive(shared))
    shared.negative_acknowledge(got[3])
    again = receive(shared)
    assert again.redelivery_count() == 1
    for message in (got[0], got[2], again, got[4]):
        shared.acknowledge(message)
    last = [receive(single) for _ in range(5)][-2]
    single.acknowledge_cumulative(last)
    single.close()
    reader = client.create_reader(T, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(5)][-1] == b"later"
    reader.close()
    (ledger, batch, _), (_, loner, _), (_, late, _) = (
        place(got[0].message_id()),
        place(again.message_id()),
        place(got[4].message_id()),
    )
    admin = Admin(broker.endpoints.web_url)
    path = "/admin/v2/persistent/public/default/t"
    assert admin.post(f"{path}/subscription/single/skip_all").status == 204
    client.subscribe(T, "single", consumer_name="c3").seek(pulsar.MessageId.earliest)
    assert admin.delete(f"{path}/subscription/single?force=true").status == 204
    client.close()
    assert broker.stop() == 0

    events = logged(tmp_path / "log")
    assert (events[0]["kind"], events[-1]["kind"]) == (Kind.OPENED, Kind.CLOSED)
    assert not of(events, Kind.MISSED)
    assert all(e["topic"] == T for e in events[1:-1])
    assert {e["subscription"] for e in events} == {None, "shared", "single"}, "nothing of the reader"
    assert of(events, Kind.PUBLISHED, "client", "ledger_id", "entry_id", "batch_size", "sequence_id") == [
        ("p", ledger, batch, 3, 0), ("q", ledger, loner, 1, 7), ("q", ledger, late, 1, 8),
    ]  # fmt: skip
    assert of(events, Kind.DUPLICATE, "client", "sequence_id", "batch_size") == [("q", 7, 1)]
    assert of(events, Kind.SUBSCRIBED, "subscription", "ledger_id", "entry_id") == [
        ("shared", ledger, -1), ("single", ledger, -1),
    ]  # fmt: skip
    to_shared = of(
        events,
        Kind.DISPATCHED,
        "entry_id",
        "batch_size",
        "redelivery_count",
        subscription="shared",
        client="c1",
    )
    assert to_shared == [(batch, 3, 0), (loner, 1, 0), (loner, 1, 1), (late, 1, 0)] or to_shared == [
        (batch, 3, 0), (loner, 1, 0), (late, 1, 0), (loner, 1, 1),
    ]  # fmt: skip
    (delayed,) = [
        e for e in events if e["kind"] == Kind.DISPATCHED and e["entry_id"] == late and e["client"] == "c1"
    ]
    (published,) = [e for e in events if e["kind"] == Kind.PUBLISHED and e["entry_id"] == late]
    assert delayed["deliver_at_ms"] == published["deliver_at_ms"] == due_ms
    assert delayed["time_ms"] >= delayed["deliver_at_ms"] - 1000
    assert of(events, Kind.DISPATCHED, "entry_id", subscription="single", client="c2") == [
        (batch,),
        (loner,),
        (late,),
    ]
    acked = of(events, Kind.ACKED, "entry_id", "batch_index", subscription="shared", client="c1")
    assert {(batch, 1), (loner, -1), (late, -1)} <= set(acked)
    assert {index for entry, index in acked if entry == batch} in (
        {0, 1, 2},
        {0, 1, -1},
        {0, 1, 2, -1},
        {1, -1},
    )
    assert of(events, Kind.ACKED_UP_TO, "subscription", "client", "entry_id") == [("single", "c2", loner)]
    assert ("single", "c2") in of(events, Kind.RELEASED, "subscription", "client")
    assert of(events, Kind.SKIPPED_UP_TO, "subscription", "entry_id") == [("single", late)]
    assert of(events, Kind.SOUGHT, "subscription", "ledger_id", "entry_id") == [("single", ledger, -1)]
    assert of(events, Kind.UNSUBSCRIBED, "subscription") == [("single",)]
    times = [e["time_ms"] for e in events]
    assert times == sorted(times)


def test_a_crash_leaves_a_log_that_says_so_and_can_be_read(
    broker_with_log: BrokerProcess, tmp_path: Path
) -> None:
    broker = broker_with_log
    broker.kill()
    broker.start()
    assert broker.stop() == 0
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == ["deliveries-00000001.log", "deliveries-00000002.log"]
    kinds = [event["kind"] for event in logged(tmp_path / "log")]
    assert kinds[-2:] == [Kind.OPENED, Kind.CLOSED]
    assert Kind.CLOSED not in kinds[:-1]


def test_written_at_once_the_log_survives_a_kill(tmp_path: Path) -> None:
    settings = {"gemingaDeliveryLogDirectory": str(tmp_path / "log"), "gemingaDeliveryLogIntervalMs": "0"}
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        BinarySession(broker.endpoints.binary_address) as connection,
    ):
        connection.connect()
        connection.create_producer(T)
        ids = [connection.publish(b"x", sequence_id=number).message_id.entryId for number in range(50)]
        connection.subscribe(T, "s", initialPosition=pb.CommandSubscribe.Earliest)
        connection.send(pb.CommandFlow(consumer_id=1, messagePermits=30))
        for _ in range(30):
            connection.expect(pb.CommandMessage)
        broker.kill()
    events = logged(tmp_path / "log")
    assert of(events, Kind.PUBLISHED, "entry_id") == [(entry,) for entry in ids]
    assert of(events, Kind.DISPATCHED, "entry_id") == [(entry,) for entry in ids[:30]]
