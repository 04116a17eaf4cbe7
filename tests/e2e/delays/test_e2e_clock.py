"""A virtual clock, moved while official clients are connected: what falls due comes, in due order, and
nothing before its time; across restarts, and where a kill ends a move.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from geminga.clock import LAST_MS
from geminga.testing.tenant import NotDelivered, Tenant
from geminga.units import time_text
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.delays.clock_restarts import LEAP_MS_MAX, shown
from tests.e2e.waiting import QUIET_MS, RECEIVE_MS, eventually

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
TOPIC = "persistent://public/default/reminders"
NAMESPACE = "/admin/v2/namespaces/public/default"
DAY_S = 86_400
DAY_MS = DAY_S * 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", arguments=["--clock", "virtual"]) as process:
        yield process


def move(broker: BrokerProcess, **body: object) -> Any:
    answer = Admin(broker.endpoints.web_url).post("/geminga/clock", body)
    assert answer.status == 200, answer.text
    return answer.json()


def now_ms(broker: BrokerProcess) -> int:
    shown: int = Admin(broker.endpoints.web_url).get("/geminga/clock").json()["now_ms"]
    return shown


def subscribe(client: pulsar.Client, **options: Any) -> pulsar.Consumer:
    return client.subscribe(
        TOPIC, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest, **options
    )


def send(client: pulsar.Client, **delays_s: float) -> None:
    """A message for each, whose body is the name."""
    producer = client.create_producer(TOPIC)
    for name, delay_s in delays_s.items():
        producer.send(name.encode(), deliver_after=timedelta(seconds=delay_s))
    producer.close()


def received(consumer: pulsar.Consumer, count: int) -> list[str]:
    """So many messages, and then none."""
    found = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)
    return found


@contextmanager
def joined(broker: BrokerProcess, make_client: Make) -> Iterator[pulsar.Consumer]:
    client = make_client(broker.endpoints.service_url)
    yield subscribe(client)
    client.close()


def test_a_year_in_three_moves_with_restarts_between(broker: BrokerProcess, make_client: Make) -> None:
    admin = Admin(broker.endpoints.web_url)
    assert admin.post(f"{NAMESPACE}/messageTTL", 400 * DAY_S).status == 204
    assert admin.post(
        f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 10_000_000, "retentionSizeInMB": -1}
    )
    began_ms = now_ms(broker)
    with joined(broker, make_client) as consumer:
        send(make_client(broker.endpoints.service_url), year=365 * DAY_S, month=30 * DAY_S, soon=2)
        assert move(broker, ms=DAY_MS)["waiting"] == []
        assert received(consumer, 1) == ["soon"]
    broker.stop()
    broker.start()
    with joined(broker, make_client) as consumer:
        jump = move(broker, ms=28 * DAY_MS)
        assert jump["from_ms"] >= began_ms + DAY_MS
        assert jump["to_ms"] == jump["from_ms"] + 28 * DAY_MS
        assert received(consumer, 0) == []
        move(broker, ms=DAY_MS)
        assert received(consumer, 1) == ["month"]
    broker.stop()
    broker.start()
    with joined(broker, make_client) as consumer:
        move(broker, ms=334 * DAY_MS)
        assert received(consumer, 0) == []
        move(broker, ms=DAY_MS)
        assert received(consumer, 1) == ["year"]


def test_one_move_brings_all_in_due_order_each_at_its_time(
    broker: BrokerProcess, make_client: Make, tmp_path: Path
) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client)
    send(client, year=365 * DAY_S, month=30 * DAY_S, soon=2, day=DAY_S)
    jump = move(broker, ms=366 * DAY_MS)
    assert received(consumer, 4) == ["soon", "day", "month", "year"]
    assert jump["is_exact"]


def test_other_topics_come_in_between(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    topics = [f"{TOPIC}-{number}" for number in range(3)]
    came: list[int] = []

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        came.append(int(message.data()))
        consumer.acknowledge(message)

    client.subscribe(topics, "s", ConsumerType.Shared, message_listener=listen)
    producers = [client.create_producer(topic) for topic in topics]
    for hour in (5, 1, 4, 0, 3, 2):
        producers[hour % 3].send(b"%d" % hour, deliver_after=timedelta(hours=hour + 1))
    move(broker, ms=DAY_MS, wait="acknowledged")
    assert came == [0, 1, 2, 3, 4, 5]


def test_what_expires_before_it_is_due_is_let_go(broker: BrokerProcess, make_client: Make) -> None:
    admin = Admin(broker.endpoints.web_url)
    assert admin.post(f"{NAMESPACE}/messageTTL", 10 * DAY_S).status == 204
    with joined(broker, make_client) as consumer:
        send(make_client(broker.endpoints.service_url), month=30 * DAY_S, week=7 * DAY_S)
        move(broker, ms=40 * DAY_MS)
        assert received(consumer, 1) == ["week"]


def test_where_ttl_counts_from_the_due_time_it_is_delivered(tmp_path: Path, make_client: Make) -> None:
    settings = {"gemingaClock": "virtual", "delayedDeliveryTtlFromDueTimeEnabled": "true"}
    with BrokerProcess(tmp_path / "from-due", settings=settings) as broker:
        assert Admin(broker.endpoints.web_url).post(f"{NAMESPACE}/messageTTL", 10 * DAY_S).status == 204
        with joined(broker, make_client) as consumer:
            send(make_client(broker.endpoints.service_url), month=30 * DAY_S)
            move(broker, ms=29 * DAY_MS)
            assert received(consumer, 0) == []
            move(broker, ms=2 * DAY_MS)
            assert received(consumer, 1) == ["month"]


def test_retention_ends_within_a_move(broker: BrokerProcess, make_client: Make) -> None:
    """A ledger that is consumed goes when its retention is over, and not before."""
    admin = Admin(broker.endpoints.web_url)
    path = "/admin/v2/persistent/public/default/reminders"
    week = {"retentionTimeInMinutes": 7 * 24 * 60, "retentionSizeInMB": -1}
    assert admin.post(f"{NAMESPACE}/retention", week).status == 204
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client)
    send(client, now=0)
    assert received(consumer, 1) == ["now"]
    assert admin.put(f"{path}/unload").status == 204  # closes the ledger, so that it can be deleted
    eventually(lambda: admin.get(f"{path}/stats").json()["subscriptions"]["s"]["consumers"])

    def entries() -> int:
        return sum(found["entries"] for found in admin.get(f"{path}/internalStats").json()["ledgers"])

    move(broker, ms=6 * DAY_MS)
    assert entries() == 1
    move(broker, ms=2 * DAY_MS)
    assert entries() == 0


def test_what_follows_from_what_expires_follows_within_the_move(tmp_path: Path, make_client: Make) -> None:
    """The subscription goes, therefore the topic; the message goes, therefore its ledger."""
    settings = {"gemingaClock": "virtual", "subscriptionExpirationTimeMinutes": str(7 * 24 * 60)}
    with BrokerProcess(tmp_path / "unused", settings=settings) as broker:
        admin = Admin(broker.endpoints.web_url)
        path = "/admin/v2/persistent/public/default"
        with joined(broker, make_client):
            assert admin.post(f"{NAMESPACE}/messageTTL", 3600).status == 204
            send(make_client(broker.endpoints.service_url), late=40 * DAY_S)
            move(broker, ms=30 * DAY_MS)
            [left] = admin.get(f"{path}/reminders/internalStats").json()["ledgers"]
            assert left["entries"] == 0
        move(broker, ms=6 * DAY_MS)
        assert admin.get(f"{path}/reminders/subscriptions").json() == ["s"]
        move(broker, ms=30 * DAY_MS)
        assert admin.get(path).json() == []


def test_a_reminder_that_sends_the_next_one(broker: BrokerProcess, make_client: Make) -> None:
    """With `acknowledged` an application keeps up: two weeks of reminders, each sent for the last."""
    client = make_client(broker.endpoints.service_url)
    producer = client.create_producer(TOPIC)
    times = []

    def remind(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        times.append(int(message.data()))
        producer.send(b"%d" % (times[-1] + 1), deliver_after=timedelta(days=1))
        consumer.acknowledge(message)

    subscribe(client, message_listener=remind)
    producer.send(b"0", deliver_after=timedelta(days=1))
    move(broker, ms=14 * DAY_MS + DAY_MS // 2, wait="acknowledged")
    assert times == list(range(14))


@pytest.mark.parametrize("knows", ["nobody has read them", "a start has read them", "a bucket has them"])
def test_due_messages_without_a_consumer_are_told(tmp_path: Path, make_client: Make, knows: str) -> None:
    """Also on a topic that no client has used since the start."""
    settings = {"gemingaClock": "virtual", "isDelayedDeliveryDeliverAtTimeStrict": "true"}
    if knows == "a bucket has them":
        settings["delayedDeliveryMinIndexCountPerBucket"] = "2"
    with BrokerProcess(tmp_path / "told", settings=settings) as broker:
        client = make_client(broker.endpoints.service_url)
        if knows == "nobody has read them":
            path = "/admin/v2/persistent/public/default/reminders/subscription/s"
            assert Admin(broker.endpoints.web_url).put(path).status == 204
        else:
            subscribe(client)
        send(client, **{f"m{number}": DAY_S for number in range(5)})
        if knows != "nobody has read them":
            admin = Admin(broker.endpoints.web_url)
            eventually(lambda: admin.get("/geminga/clock").json()["next_due_ms"])
            client.close()
            broker.stop()
            broker.start()
        assert move(broker, ms=DAY_MS // 2)["waiting"] == []
        assert move(broker, ms=DAY_MS)["waiting"] == [f"{TOPIC} / s"]
        with joined(broker, make_client) as consumer:
            assert sorted(received(consumer, 5)) == [f"m{number}" for number in range(5)]
        assert move(broker, ms=1)["waiting"] == []


def test_due_messages_for_a_queue_of_size_0_are_told(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    subscribe(client, receiver_queue_size=0)
    send(client, day=DAY_S)
    assert move(broker, ms=2 * DAY_MS)["waiting"] == [f"{TOPIC} / s"]


def test_what_is_not_acknowledged_in_time_is_told(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client)
    send(client, day=DAY_S, later=2 * DAY_S)
    moved = move(broker, ms=3 * DAY_MS, wait="acknowledged", wait_seconds=0.05)
    assert moved["unacknowledged"] == [f"{TOPIC} / s"]
    assert received(consumer, 2) == ["day", "later"]
    assert move(broker, ms=DAY_MS, wait="acknowledged")["unacknowledged"] == []
    send(client, day=DAY_S)
    endpoints = broker.endpoints
    served = SimpleNamespace(service_url=endpoints.service_url, web_url=endpoints.web_url, log="")
    tenant = Tenant(served, "kit")
    with pytest.raises(NotDelivered, match=f"not acknowledged within 0.05 s of a due time: {TOPIC} / s"):
        tenant.advance("2d", until_acknowledged=True, timeout_s=0.05)


def test_a_caller_that_goes_away_ends_its_move(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client)
    send(client, day=DAY_S, month=30 * DAY_S)
    began_ms = now_ms(broker)
    host, port = broker.endpoints.web_url.removeprefix("http://").split(":")
    caller = http.client.HTTPConnection(host, int(port))
    body = json.dumps({"ms": 40 * DAY_MS, "wait": "acknowledged", "wait_seconds": 600})
    caller.request("POST", "/geminga/clock", body, {"Content-Type": "application/json"})
    message = consumer.receive(RECEIVE_MS)
    caller.close()
    consumer.acknowledge(message)
    admin = Admin(broker.endpoints.web_url)
    [told] = eventually(lambda: admin.get("/geminga/events?kind=clock-moved").json())
    target = time_text(told["counts"]["from_ms"] + 40 * DAY_MS)
    assert told["text"].startswith(f"ended early, on its way to {target}:")
    assert told["counts"]["to_ms"] - began_ms < 30 * DAY_MS
    assert 0 <= now_ms(broker) - told["counts"]["to_ms"] < 60_000
    offset_ms = shown(broker).offset_ms
    broker.kill()
    broker.start()
    assert abs(shown(broker).offset_ms - offset_ms) <= LEAP_MS_MAX


def test_a_cursor_is_set_back_by_the_clock_of_the_broker(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    subscribe(client).close()
    for name in ("old", "new"):
        move(broker, ms=DAY_MS)
        send(client, **{name: 0})
    client.close()
    move(broker, ms=DAY_MS)
    done = command(broker, "topics", "reset-cursor", TOPIC, "-s", "s", "-t", "36h")
    assert done.returncode == 0, done.stderr
    assert backlog(broker) == 1


def test_events_have_the_time_of_the_clock(broker: BrokerProcess) -> None:
    moved = move(broker, ms=30 * DAY_MS)
    [told] = Admin(broker.endpoints.web_url).get("/geminga/events?kind=clock-moved").json()
    assert told["time_ms"] == moved["to_ms"]
    assert told["wall_ms"] < moved["from_ms"] + DAY_MS


def test_due_messages_without_room_are_told(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client, receiver_queue_size=1)
    send(client, **{f"m{number}": DAY_S for number in range(5)})
    assert move(broker, ms=2 * DAY_MS)["waiting"] == [f"{TOPIC} / s"]
    assert sorted(received(consumer, 5)) == [f"m{number}" for number in range(5)]
    assert move(broker, ms=1)["waiting"] == []


def test_to_a_moment_and_to_the_next(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client)
    admin = Admin(broker.endpoints.web_url)
    refused = admin.post("/geminga/clock", {"next": True})
    assert refused.status == 409
    assert "nothing is waiting for a time" in refused.text
    send(client, later=3 * DAY_S, sooner=2 * DAY_S)
    eventually(lambda: admin.get("/geminga/clock").json()["next_due_ms"])
    due_ms = admin.get("/geminga/clock").json()["next_due_ms"]
    jump = move(broker, next=True)
    assert (jump["to_ms"], jump["event"]) == (due_ms, f"a message is due: {TOPIC} / s")
    assert received(consumer, 1) == ["sooner"]
    later_ms = admin.get("/geminga/clock").json()["next_due_ms"]
    assert DAY_MS - 60_000 < later_ms - due_ms < DAY_MS + 60_000
    move(broker, to_ms=later_ms - 10_000)
    assert received(consumer, 0) == []
    move(broker, to_ms=later_ms)
    assert received(consumer, 1) == ["later"]


def test_a_due_message_without_a_consumer_does_not_hold_up_the_next_event(
    broker: BrokerProcess, make_client: Make
) -> None:
    admin, other = Admin(broker.endpoints.web_url), "persistent://public/default/other"
    with joined(broker, make_client):
        client = make_client(broker.endpoints.service_url)
        send(client, day=DAY_S)
        eventually(lambda: admin.get("/geminga/clock").json()["next_due_ms"])
    consumer = client.subscribe(other, "s", ConsumerType.Shared)
    client.create_producer(other).send(b"far", deliver_after=timedelta(seconds=3 * DAY_S))
    first, second = move(broker, next=True), move(broker, next=True)
    assert (first["event"], first["waiting"]) == (f"a message is due: {TOPIC} / s", [f"{TOPIC} / s"])
    assert second["event"] == f"a message is due: {other} / s"
    assert received(consumer, 1) == ["far"]
    refused = admin.post("/geminga/clock", {"next": True})
    assert refused.status == 409
    assert f"due messages wait for a consumer with room: {TOPIC} / s" in refused.text


def backlog(broker: BrokerProcess) -> int:
    stats = Admin(broker.endpoints.web_url).get("/admin/v2/persistent/public/default/reminders/stats").json()
    found: int = stats["subscriptions"]["s"]["msgBacklog"]
    return found


@pytest.mark.parametrize("from_due_time", [False, True])
def test_the_next_event_is_the_end_of_a_ttl(tmp_path: Path, make_client: Make, from_due_time: bool) -> None:
    settings = {"gemingaClock": "virtual", "delayedDeliveryTtlFromDueTimeEnabled": str(from_due_time).lower()}
    with BrokerProcess(tmp_path / "ttl", settings=settings) as broker:
        assert Admin(broker.endpoints.web_url).post(f"{NAMESPACE}/messageTTL", 10 * DAY_S).status == 204
        with joined(broker, make_client):
            began_ms = now_ms(broker)
            send(make_client(broker.endpoints.service_url), month=30 * DAY_S)
            eventually(lambda: backlog(broker) == 1)
            ends = f"the TTL of its oldest message ends: {TOPIC} / s"
            expected = [(30, f"a message is due: {TOPIC} / s"), (40, ends)] if from_due_time else [(10, ends)]
            for days, event in expected:
                assert backlog(broker) == 1
                jump = move(broker, next=True)
                assert jump["event"] == event
                assert 0 <= jump["to_ms"] - began_ms - days * DAY_MS < 60_000
            assert backlog(broker) == 0
            assert Admin(broker.endpoints.web_url).post("/geminga/clock", {"next": True}).status == 409


def test_the_next_event_is_the_end_of_what_is_unused(tmp_path: Path, make_client: Make) -> None:
    settings = {"gemingaClock": "virtual", "subscriptionExpirationTimeMinutes": str(7 * 24 * 60)}
    with BrokerProcess(tmp_path / "unused", settings=settings) as broker:
        admin = Admin(broker.endpoints.web_url)
        with joined(broker, make_client):
            pass
        path = "/admin/v2/persistent/public/default"
        eventually(lambda: not admin.get(f"{path}/reminders/stats").json()["subscriptions"]["s"]["consumers"])
        assert move(broker, next=True)["event"] == f"unused for too long: {TOPIC} / s"
        assert admin.get(f"{path}/reminders/subscriptions").json() == []
        assert move(broker, next=True)["event"] == f"unused for too long: {TOPIC}"
        assert admin.get(path).json() == []


def test_what_a_move_refuses(broker: BrokerProcess) -> None:
    admin = Admin(broker.endpoints.web_url)
    shown_ms = now_ms(broker)
    for body, status, text in (
        ({}, 400, "expected one of"),
        ({"ms": 1, "next": True}, 400, "expected one of"),
        ({"ms": -1}, 400, "the clock never goes back"),
        ({"ms": "1d"}, 400, "Expected `int | null`, got `str` - at `$.ms`"),
        ({"ms": 1, "until": 2}, 400, "unknown field `until`"),
        ({"ms": 1, "wait": "done"}, 400, "Invalid enum value 'done'"),
        ({"ms": 1, "wait_seconds": 1e9}, 400, "wait_seconds: expected 0 to 3600"),
        ({"to_ms": 1}, 409, "never goes back, to 1970-01-01T00:00:00.001Z"),
        (
            {"to_ms": 2**42},
            409,
            "go to 2109-05-15T07:35:11.104Z: its last moment is 2109-05-15T07:35:11.103Z",
        ),
        ({"ms": 2**42 - 1}, 409, "its last moment is"),
        ([], 400, "expected one of"),
    ):
        answer = admin.post("/geminga/clock", body)
        assert (answer.status, text in answer.text) == (status, True), (body, answer.text)
    assert 0 <= now_ms(broker) - shown_ms < 60_000


def test_messages_are_served_at_the_last_moment_of_the_clock(
    broker: BrokerProcess, make_client: Make
) -> None:
    admin = Admin(broker.endpoints.web_url)
    assert admin.post("/geminga/clock", {"to_ms": LAST_MS - 50}).status == 200
    eventually(lambda: now_ms(broker) == LAST_MS)
    client = make_client(broker.endpoints.service_url)
    consumer = client.subscribe("end-of-time", "s")
    client.create_producer("end-of-time").send(b"x")
    assert consumer.receive(10_000).data() == b"x"
    assert admin.post("/geminga/clock", {"ms": 1}).status == 409
    assert now_ms(broker) == LAST_MS


def test_a_real_clock_cannot_be_moved(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "real") as broker:
        admin = Admin(broker.endpoints.web_url)
        assert admin.get("/geminga/clock").json()["clock"] == "real"
        answer = admin.post("/geminga/clock", {"ms": 1})
        assert answer.status == 409
        assert "--clock virtual" in answer.text


def test_a_directory_keeps_its_clock(tmp_path: Path, broker: BrokerProcess) -> None:
    move(broker, ms=DAY_MS)
    shown_ms = now_ms(broker)
    broker.stop()
    other = BrokerProcess(broker.data_dir, arguments=["--clock", "real"], log_path=tmp_path / "other.log")
    with pytest.raises(AssertionError):
        other.start()
    assert "was made for a virtual clock" in (tmp_path / "other.log").read_text()
    plain = BrokerProcess(broker.data_dir, log_path=tmp_path / "plain.log")
    with plain:
        assert now_ms(plain) >= shown_ms
        assert Admin(plain.endpoints.web_url).get("/geminga/clock").json()["clock"] == "virtual"
    broker.start()


def test_a_kill_within_a_move_never_sets_the_clock_back(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client, receiver_queue_size=1)
    send(client, day=DAY_S, month=30 * DAY_S, year=365 * DAY_S)
    target_ms = now_ms(broker) + 400 * DAY_MS
    # Waits for acknowledgements at its first stop, where the kill finds it.
    answer: list[object] = []

    def ask() -> None:
        try:
            answer.append(move(broker, to_ms=target_ms, wait="acknowledged", wait_seconds=60))
        except (OSError, EOFError, http.client.HTTPException) as error:
            answer.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    first = consumer.receive(RECEIVE_MS)
    assert first.data() == b"day"
    assert now_ms(broker) < target_ms
    client.close()
    broker.send_signal(signal.SIGKILL)
    asking.join(30)
    broker.wait()
    broker.start()
    assert now_ms(broker) >= target_ms
    with joined(broker, make_client) as consumer:
        assert sorted(received(consumer, 3)) == ["day", "month", "year"]


def command(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GEMINGA_WEB_URL": broker.endpoints.web_url}
    line = [sys.executable, "-m", "geminga", *arguments]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)


def test_a_due_time_that_is_not_read_yet_is_said_to_be_unknown(broker: BrokerProcess) -> None:
    assert "next due  -\n" in command(broker, "clock", "now").stdout
    command(broker, "topics", "create-subscription", TOPIC, "-s", "s")
    command(broker, "produce", TOPIC, "-m", "x", "--delay", "30d")
    unread = "1 unread entry may be delayed, to be read for a consumer with room\n"
    assert f"next due  not known yet: {unread}" in command(broker, "clock", "now").stdout
    due_ms = now_ms(broker) + 30 * DAY_MS
    move(broker, ms=DAY_MS)
    report = json.loads(command(broker, "clock", "now", "--json").stdout)
    assert (report["unread_topics"], report["unread_entries"]) == (0, 0)
    assert due_ms - 60_000 <= report["next_due_ms"] <= due_ms
    command(broker, "topics", "create-subscription", f"{TOPIC}-2", "-s", "s")
    command(broker, "produce", f"{TOPIC}-2", "-m", "y", "--delay", "1h")
    assert f"Z, or before: {unread}" in command(broker, "clock", "now").stdout


def test_the_command(broker: BrokerProcess, make_client: Make) -> None:
    shown = command(broker, "clock", "now", "--json")
    before = json.loads(shown.stdout)
    assert before["clock"] == "virtual"
    moved = command(broker, "clock", "advance", "30d")
    assert moved.returncode == 0, moved.stderr
    assert "moved by  30 days, 0:00:00" in moved.stdout
    assert "ahead by  30 days" in command(broker, "clock", "now").stdout
    assert command(broker, "clock", "to", "2100-01-01T00:00Z").returncode == 0
    assert "2100-01-01T00:00:" in command(broker, "clock", "now").stdout
    back = command(broker, "clock", "to", "2099-01-01T00:00Z")
    assert back.returncode == 1
    assert back.stderr.startswith("geminga clock: ")
    assert "never goes back" in back.stderr


def test_postponing_goes_by_the_clock_of_the_broker(broker: BrokerProcess, make_client: Make) -> None:
    client = make_client(broker.endpoints.service_url)
    consumer = subscribe(client)
    move(broker, ms=100 * DAY_MS)
    send(client, once=DAY_S)
    admin = Admin(broker.endpoints.web_url)
    eventually(lambda: admin.get("/geminga/clock").json()["next_due_ms"])
    listed = json.loads(command(broker, "delayed", "list", TOPIC, "--json").stdout)
    place = "{ledgerId}:{entryId}".format(**listed["messages"][0])
    done = command(broker, "delayed", "postpone", TOPIC, place, "--for", "3d")
    assert done.returncode == 0, done.stderr
    move(broker, ms=2 * DAY_MS)
    assert received(consumer, 0) == []
    move(broker, ms=2 * DAY_MS)
    assert received(consumer, 1) == ["once"]
