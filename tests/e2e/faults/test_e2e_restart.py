"""What a broker knows after it was stopped, or killed, and started again on the same data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import assert_quiet, eventually, now_ms, payloads, place, receive, receive_count

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
SETTINGS = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("restart") / "data", settings=SETTINGS) as process:
        yield process


@pytest.fixture
def service_url(process: BrokerProcess) -> str:
    return process.endpoints.service_url


@pytest.fixture
def web(process: BrokerProcess) -> Admin:
    return Admin(process.endpoints.web_url)


@pytest.fixture(params=["stopped", "killed"])
def restart(request: pytest.FixtureRequest, process: BrokerProcess) -> Callable[[], Endpoints]:
    def again() -> Endpoints:
        if request.param == "killed":
            process.kill()
        else:
            assert process.stop() == 0
        return process.start()

    return again


def test_the_same_client_works_on(
    make_client: Make, service_url: str, restart: Callable[[], Endpoints], topic: str
) -> None:
    """Producer and consumer reconnect by themselves; nothing is lost, nothing comes out of order."""
    client = make_client(service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    before = [place(producer.send(b"%d" % number)) for number in range(10)]
    assert payloads(receive_count(consumer, 5)) == [b"%d" % number for number in range(5)]
    restart()
    after = [place(producer.send(b"%d" % number)) for number in range(10, 20)]
    assert min(after) > max(before)
    seen = [int(receive(consumer).data()) for _ in range(15)]
    fresh = list(dict.fromkeys(seen))
    while fresh[-1] != 19:
        seen.append(int(receive(consumer).data()))
        fresh = list(dict.fromkeys(seen))
    assert [number for number in fresh if number >= 5] == list(range(5, 20))


def test_messages_and_ids_stay(
    make_client: Make, service_url: str, restart: Callable[[], Endpoints], topic: str
) -> None:
    producer = make_client(service_url).create_producer(topic, producer_name="orders-1")
    sent = [place(producer.send(b"%d" % number, properties={"n": str(number)})) for number in range(50)]
    restart()
    reader = make_client(service_url).create_reader(topic, MessageId.earliest)
    messages = [reader.read_next(10_000) for _ in range(50)]
    assert payloads(messages) == [b"%d" % number for number in range(50)]
    assert [place(message.message_id()) for message in messages] == sent
    assert [message.properties() for message in messages] == [{"n": str(n)} for n in range(50)]
    assert {message.producer_name() for message in messages} == {"orders-1"}


def test_a_new_ledger_begins(
    make_client: Make, service_url: str, restart: Callable[[], Endpoints], topic: str
) -> None:
    first = make_client(service_url)
    before = first.create_producer(topic).send(b"before")
    first.close()
    restart()
    after = make_client(service_url).create_producer(topic).send(b"after")
    assert after.ledger_id() > before.ledger_id()
    assert after.entry_id() == 0


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=lambda kind: kind.name)
def test_acknowledgements_stay(
    make_client: Make, service_url: str, process: BrokerProcess, web: Admin, topic: str, kind: ConsumerType
) -> None:
    """After a clean stop exactly; a crash may take them back."""
    client = make_client(service_url)
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    for message in receive_count(consumer, 10, acknowledge=False):
        if int(message.data()) not in (3, 7):
            consumer.acknowledge(message)
    eventually(lambda: web.backlog(topic, "s") == 2)
    client.close()
    assert process.stop() == 0
    process.start()
    consumer = make_client(service_url).subscribe(topic, "s", kind)
    assert payloads(receive_count(consumer, 2)) == [b"3", b"7"]
    assert_quiet(consumer)


def test_acknowledged_parts_of_a_batch_stay(
    make_client: Make, service_url: str, process: BrokerProcess, topic: str
) -> None:
    client = make_client(service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(10):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    for message in receive_count(consumer, 10, acknowledge=False):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    client.close()
    assert process.stop() == 0
    process.start()
    consumer = make_client(service_url).subscribe(
        topic, "s", ConsumerType.Shared, batch_index_ack_enabled=True
    )
    assert payloads(receive_count(consumer, 5)) == [b"0", b"2", b"4", b"6", b"8"]


def test_a_crash_takes_acknowledgements_back_at_most(
    make_client: Make, service_url: str, process: BrokerProcess, topic: str
) -> None:
    client = make_client(service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    receive_count(consumer, 10)
    client.close()
    process.kill()
    process.start()
    consumer = make_client(service_url).subscribe(topic, "s")
    first = int(receive(consumer).data())
    assert first <= 10
    assert payloads(receive_count(consumer, 19 - first)) == [b"%d" % n for n in range(first + 1, 20)]


def test_a_subscription_without_acknowledgements_stays(
    make_client: Make, service_url: str, restart: Callable[[], Endpoints], topic: str
) -> None:
    first = make_client(service_url)
    first.subscribe(topic, "s")
    first.create_producer(topic).send(b"kept")
    first.close()
    restart()
    assert receive(make_client(service_url).subscribe(topic, "s")).data() == b"kept"


def test_seek_stays(
    make_client: Make, service_url: str, restart: Callable[[], Endpoints], topic: str
) -> None:
    client = make_client(service_url)
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(10)]
    receive_count(consumer, 10)
    consumer.seek(ids[6])
    client.close()
    restart()
    consumer = make_client(service_url).subscribe(topic, "s")
    assert payloads(receive_count(consumer, 4)) == [b"6", b"7", b"8", b"9"]


def test_delayed_messages_keep_their_time(
    make_client: Make, service_url: str, restart: Callable[[], Endpoints], topic: str
) -> None:
    client = make_client(service_url)
    client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 4000
    producer.send(b"later", deliver_at=due_ms)
    producer.send(b"much later", deliver_after=timedelta(minutes=5))
    producer.send(b"plain")
    client.close()
    restart()
    consumer = make_client(service_url).subscribe(topic, "s", ConsumerType.Shared)
    assert receive(consumer).data() == b"plain"
    assert receive(consumer).data() == b"later"
    assert due_ms - 1000 <= now_ms()
    assert_quiet(consumer)


def test_names_and_partitions_stay(
    make_client: Make, service_url: str, web: Admin, restart: Callable[[], Endpoints], topic: str
) -> None:
    tenant = topic.rpartition("/")[2][-20:].strip("-")
    web.put(f"/admin/v2/tenants/{tenant}", {"adminRoles": ["me"], "allowedClusters": ["standalone"]})
    assert web.put(f"/admin/v2/namespaces/{tenant}/ns").status == 204
    name = f"persistent://{tenant}/ns/parts"
    web.create_partitions(name, 3)
    restart()
    assert web.get(f"/admin/v2/tenants/{tenant}").json()["adminRoles"] == ["me"]
    assert web.get(f"/admin/v2/{topic_path(name)}/partitions").json()["partitions"] == 3
    client = make_client(service_url)
    assert len(client.get_topic_partitions(name)) == 3
    consumer = client.subscribe(name, "s", initial_position=InitialPosition.Earliest)
    producer = client.create_producer(name)
    for number in range(6):
        producer.send(b"%d" % number)
    assert sorted(payloads(receive_count(consumer, 6))) == [b"%d" % number for number in range(6)]


def test_deleted_things_stay_deleted(
    make_client: Make, service_url: str, web: Admin, restart: Callable[[], Endpoints], topic: str
) -> None:
    client = make_client(service_url)
    client.subscribe(topic, "s").unsubscribe()
    client.create_producer(topic + "-gone").close()
    assert web.delete(f"/admin/v2/{topic_path(topic + '-gone')}").status == 204
    client.close()
    restart()
    assert web.get(f"/admin/v2/{topic_path(topic)}/subscriptions").json() == []
    assert topic + "-gone" not in web.get("/admin/v2/persistent/public/default").json()


# ------------------------------------------------------------------------- starting, and not starting


def test_a_data_directory_belongs_to_one_broker(process: BrokerProcess, tmp_path: Path) -> None:
    second = BrokerProcess(process.data_dir, log_path=tmp_path / "second.log")
    with pytest.raises(AssertionError, match="no ready line"), second:
        pass
    assert str(process.data_dir) in second.log_tail()
    assert "Traceback" not in second.log_tail()
    assert Admin(process.endpoints.web_url).well().text == "ok"


def test_a_port_that_is_taken(process: BrokerProcess, tmp_path: Path) -> None:
    port = process.endpoints.binary_address[1]
    second = BrokerProcess(tmp_path / "data", ports=(port, 0))
    with pytest.raises(AssertionError, match="no ready line"), second:
        pass
    assert str(port) in second.log_tail()
    assert "Traceback" not in second.log_tail()


def test_a_directory_that_is_something_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "thesis.txt").write_text("do not touch")
    process = BrokerProcess(data)
    with pytest.raises(AssertionError, match="no ready line"), process:
        pass
    assert str(data) in process.log_tail()
    assert "Traceback" not in process.log_tail()
    assert [path.name for path in data.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--no-such-flag"], "--no-such-flag"), (["--port", "notanumber"], "notanumber")],
)
def test_bad_flags(tmp_path: Path, arguments: list[str], named: str) -> None:
    process = BrokerProcess(tmp_path / "data", arguments=arguments)
    with pytest.raises(AssertionError, match="no ready line"), process:
        pass
    assert named in process.log_tail()
    assert "Traceback" not in process.log_tail()


def test_an_unknown_key_in_the_file_is_named_with_a_suggestion(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", settings={"delayedDeliveryTickTimeMilis": "16"})
    with pytest.raises(AssertionError, match="no ready line"), process:
        pass
    assert "delayedDeliveryTickTimeMilis" in process.log_tail()
    assert "delayedDeliveryTickTimeMillis" in process.log_tail()
