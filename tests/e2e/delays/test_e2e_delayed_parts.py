"""What is told of a delayed index while it runs: its parts add up to what waits, whatever becomes of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.delays.test_e2e_delayed_index import FAR_MS, SETTINGS, publish
from tests.e2e.waiting import eventually, now_ms

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
BUCKET_ROWS = int(SETTINGS["delayedDeliveryMinIndexCountPerBucket"])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("parts") / "data"
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=["--chaos"]) as process:
        yield process


class Eyes:
    """What is told of one subscription."""

    def __init__(self, process: BrokerProcess, topic: str, name: str = "s") -> None:
        self._process = process
        self._topic = topic
        self._name = name

    def ask(self, tail: str = "", *, status: int = 200) -> Any:
        web = Admin(self._process.endpoints.web_url)
        answer = web.get(f"/geminga/delayed/{topic_path(self._topic)}/subscription/{self._name}{tail}")
        assert answer.status == status, answer
        return answer.json()

    def post(self, action: str, body: Any) -> Any:
        web = Admin(self._process.endpoints.web_url)
        return web.post(
            f"/geminga/delayed/{topic_path(self._topic)}/subscription/{self._name}/{action}", body
        )

    def said(self, action: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "geminga", "delayed", action, self._topic, "-s", self._name]
        command += [*arguments, "--url", self._process.endpoints.web_url]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    def by_state(self) -> dict[str, int]:
        """Messages in each state, or entries that are not read; they add up to what the summary says."""
        before, parts, drawn = self.ask(), self.ask("/buckets"), self.ask("/histogram?widthMs=1000")
        summary, page = self.ask(), self.ask("/messages")
        if summary != before:
            return self.by_state()
        found: dict[str, int] = {}
        for part in parts:
            found[part["state"]] = found.get(part["state"], 0) + part["messages"] + part["notRead"]
        assert sum(part["messages"] for part in parts) == summary["messages"], (parts, summary)
        assert sum(part["notRead"] for part in parts) == summary["unread"], (parts, summary)
        assert sum(one["entries"] for one in summary["notRead"]) == summary["unread"]
        rest = summary["pending"] + summary["toBeSentAgain"]
        assert summary["backlog"] == summary["messages"] + summary["unread"] + rest
        assert sum(row["messages"] for row in drawn["classes"]) == summary["messages"]
        assert drawn["notRead"] == summary["notRead"] == page["notRead"]
        return found

    def at_rest(self, messages: int, partitions: int = 1) -> dict[str, int]:
        """`by_state` once all are read and each whole bucket is sealed; empty before.

        How many are sealed depends on how far the reading was behind the publishing: what is read behind it
        is sealed when the two meet, with less than a whole bucket.
        """
        found = self.by_state()
        is_read = found.keys() <= {"sealed", "growing"} and sum(found.values()) == messages
        return found if is_read and found.get("growing", 0) < BUCKET_ROWS * partitions else {}


def test_the_parts_of_an_index_add_up_for_each_subscription(
    process: BrokerProcess, make_client: Make, topic: str
) -> None:
    client, eyes = make_client(process.endpoints.service_url), Eyes(process, topic)
    client.subscribe(topic, "s", ConsumerType.Shared)
    client.subscribe(topic, "other", ConsumerType.Shared)
    other = Eyes(process, topic, "other")
    producer = client.create_producer(topic)
    publish(producer, [now_ms() + FAR_MS + n for n in range(30)])
    eventually(lambda: eyes.by_state() == {"growing": 30})
    publish(producer, [now_ms() + FAR_MS + n for n in range(230)])

    def are_sealed() -> Any:
        found = eyes.at_rest(260)
        return found and found == other.at_rest(260)

    eventually(are_sealed)
    parts = eyes.ask("/buckets")
    for part in parts:
        on_disk, in_memory = (part["messages"], 0) if part["state"] == "sealed" else (0, part["messages"])
        assert (part["rowsOnDisk"], part["rowsInMemory"]) == (on_disk, in_memory)
        assert (part["ledgerId"] is None) == (part["state"] == "growing")
        assert part["firstDueMs"] <= part["lastDueMs"]
        assert sum(segment["messages"] for segment in part["segments"]) == on_disk
    first = eyes.ask("/messages?limit=1")["messages"][0]
    eyes.post(
        "postpone", {"message": f"{first['ledgerId']}:{first['entryId']}", "dueMs": now_ms() + 3 * FAR_MS}
    )
    assert eyes.by_state()["memory"] == 1 == other.by_state()["memory"], "rescheduled"

    path = f"/admin/v2/{topic_path(topic)}/subscription/other"
    assert Admin(process.endpoints.web_url).post(f"{path}/skip_all").status == 204
    assert sum(other.by_state().values()) == 0
    assert sum(eyes.by_state().values()) == 260
    assert len(other.ask("/buckets")) >= len(parts), "they stay for the one that wants them"
    shown = other.said("buckets")
    assert shown.splitlines()[-1] == "messages that wait: 0"
    assert "sealed" in shown
    assert other.said("histogram") == "no message waits\n"


def test_what_is_due_waits_for_a_consumer(process: BrokerProcess, make_client: Make, topic: str) -> None:
    client, eyes = make_client(process.endpoints.service_url), Eyes(process, topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    publish(client.create_producer(topic), [now_ms() + 1500] * 20 + [now_ms() + FAR_MS] * 5)
    eventually(lambda: eyes.ask()["pending"] == 1)
    assert eyes.by_state() == {"due": 19, "growing": 5}
    assert eyes.ask()["due"] == 19
    consumer.close()
    eventually(lambda: (eyes.ask()["toBeSentAgain"], eyes.ask()["unread"]) == (1, 0))
    assert eyes.by_state() == {"due": 19, "growing": 5}, "what the consumer had was read"


def test_a_lost_bucket_is_seen_until_it_is_read_again(
    process: BrokerProcess, make_client: Make, topic: str
) -> None:
    client, eyes = make_client(process.endpoints.service_url), Eyes(process, topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    # Each segment is loaded a minute ahead of its time: only then the damage is found.
    due_ms = now_ms() + 62_500
    publish(client.create_producer(topic), [due_ms + n for n in range(230)])
    eventually(lambda: eyes.at_rest(230))
    consumer.close()
    eventually(lambda: not eyes.ask()["consumers"])
    bucket = next(part for part in eyes.ask("/buckets") if part["ledgerId"] is not None)
    assert eyes.post("lose-bucket", {"ledgerId": bucket["ledgerId"], "quietly": True}).status == 200
    shown = eyes.ask(f"/show/{bucket['ledgerId']}", status=409)["reason"]
    assert "cannot be read" in shown
    assert "geminga delayed verify" in shown

    lost = eventually(lambda: (found := eyes.by_state()).get("lost") and found)
    # More, where another bucket has messages of the same range: whose they were is not known without it.
    count = lost["lost"]
    assert bucket["messages"] <= count < 230
    assert sum(lost.values()) == 230
    [row] = [part for part in eyes.ask("/buckets") if part["state"] == "lost"]
    assert (row["startLedger"], row["endLedger"]) == (bucket["startLedger"], bucket["endLedger"])
    why = "missing in the index, not in the topic; they are read again when a consumer connects"
    assert f"{count} (ledgers {row['range']}): {why}" in eyes.said("summary")
    waiting, lines = 230 - count, eyes.said("buckets").splitlines()
    assert f"entries not read yet, which may have to wait too: {count}\n" in eyes.said("list")
    total = f"messages that wait: {waiting}; entries not read yet: {count}"
    assert lines[-2:] == [total, f"  lost: {why}"]

    client.subscribe(topic, "s", ConsumerType.Shared)

    def is_whole() -> bool:
        found = eyes.by_state()
        return "lost" not in found and not eyes.ask()["unread"] and sum(found.values()) == 230

    eventually(is_whole)


def test_nothing_is_said_to_wait_for_nothing_after_a_restart(
    process: BrokerProcess, make_client: Make, topic: str
) -> None:
    client, eyes = make_client(process.endpoints.service_url), Eyes(process, topic)
    client.subscribe(topic, "s", ConsumerType.Shared)
    publish(client.create_producer(topic), [now_ms() + FAR_MS + n for n in range(230)])
    eventually(lambda: eyes.at_rest(230))
    bucket = next(part for part in eyes.ask("/buckets") if part["ledgerId"] is not None)
    client.close()
    eventually(lambda: eyes.ask()["consumers"] == 0)  # with one the broker would read again at once
    assert eyes.post("lose-bucket", {"ledgerId": bucket["ledgerId"]}).status == 200
    process.kill()
    process.start()
    assert sum(eyes.by_state().values()) == 230
    assert "no message waits" not in eyes.said("histogram")
    # What the lost bucket had is read from the backlog, and no consumer has to come for that.
    eventually(lambda: eyes.at_rest(230))
    assert eyes.ask()["unread"] == eyes.ask()["consumers"] == 0


def test_a_partitioned_topic_is_taken_whole(process: BrokerProcess, make_client: Make, topic: str) -> None:
    Admin(process.endpoints.web_url).create_partitions(topic, 3)
    client, eyes = make_client(process.endpoints.service_url), Eyes(process, topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producers = [client.create_producer(f"{topic}-partition-{n}") for n in range(3)]
    start_ms = now_ms()
    for number, producer in enumerate(producers):
        publish(producer, [start_ms + FAR_MS * (1 + number) + n for n in range(120)])
    eventually(lambda: eyes.at_rest(360, partitions=3))
    summary = eyes.ask()
    assert (summary["messages"], summary["partitions"], summary["consumers"]) == (360, 3, 3)
    parts = eyes.ask("/buckets")
    for number in range(3):
        assert sum(part["messages"] for part in parts if part["partition"] == number) == 120
    assert eyes.said("buckets").splitlines()[0].split()[:3] == ["STATE", "PARTITION", "RANGE"]
    rows = eyes.ask(f"/histogram?widthMs={FAR_MS}")["classes"]
    assert sum(row["messages"] for row in rows) == 360
    places, start = [], "0:0"
    while start is not None:
        page = eyes.ask(f"/messages?start={start}&limit=150")
        places += [(one["ledgerId"], one["entryId"]) for one in page["messages"]]
        start = page["next"]
    assert len(places) == len(set(places)) == 360
    assert places == sorted(places)
    sample = [places[0], places[180], places[-1]]
    for ledger_id, entry_id in sample:
        assert eyes.ask(f"/why/{ledger_id}/{entry_id}")["reason"] == "delayed"
    cancelled = eyes.post("cancel", {"messages": [f"{ledger}:{entry}" for ledger, entry in sample]})
    assert cancelled.json() == {"cancelled": 3, "notCancelled": []}
    assert eyes.post("expedite", {"message": "{}:{}".format(*places[200])}).status == 204
    assert consumer.receive(5000).message_id().ledger_id() == places[200][0]
    assert sum(eyes.by_state().values()) == 356
    ledgers = {part["ledgerId"] for part in parts} - {None}
    assert {eyes.ask(f"/show/{ledger_id}")["partition"] for ledger_id in ledgers} == {0, 1, 2}


def test_a_bucket_is_decoded(process: BrokerProcess, make_client: Make, topic: str) -> None:
    client, eyes = make_client(process.endpoints.service_url), Eyes(process, topic)
    client.subscribe(topic, "s", ConsumerType.Shared)
    start_ms = now_ms() + FAR_MS
    due_ms = publish(client.create_producer(topic), [start_ms + 700 * (n % 50) for n in range(120)])
    bucket = eventually(lambda: next((p for p in eyes.ask("/buckets") if p["ledgerId"] is not None), None))
    listed = {
        (one["ledgerId"], one["entryId"]): number
        for number, one in enumerate(eyes.ask("/messages?limit=120")["messages"])
    }
    name = bucket["range"]
    shown, by_ledger = eyes.ask(f"/show/{name}"), eyes.ask(f"/show/{bucket['ledgerId']}")
    assert shown == by_ledger
    assert shown["messages"] == bucket["messages"] == sum(one["messages"] for one in shown["segments"])
    assert shown["property"].endswith(f"bucket_{name.replace('-', '_')}")
    assert sum(one["waiting"] for one in shown["ledgers"]) == bucket["messages"]
    rows, start = [], 0
    while start is not None:
        page = eyes.ask(f"/show/{name}/messages?start={start}&limit=7")
        assert len(page["messages"]) <= 7
        rows += page["messages"]
        start = page["next"]
    assert len(rows) == bucket["messages"]
    assert [row["dueMs"] for row in rows] == sorted(row["dueMs"] for row in rows)
    for row in rows:
        assert row["dueMs"] == due_ms[listed[row["ledgerId"], row["entryId"]]]
        segment = shown["segments"][row["segment"]]
        assert segment["firstDueMs"] <= row["dueMs"] <= segment["lastDueMs"]
        assert row["waits"]
    cancelled = f"{rows[3]['ledgerId']}:{rows[3]['entryId']}"
    eyes.post("cancel", {"messages": [cancelled]})
    page = eyes.said("show", name, "--messages", "--from", "2", "--limit", "3").splitlines()
    assert [line.endswith("does not wait any more") for line in page] == [False, True, False, False]
    assert page[1].startswith(cancelled)
    assert page[3] == "more: --from 5"
    text = eyes.said("show", name)
    assert f"{bucket['messages']} when it was sealed, {bucket['messages'] - 1} of them wait" in text
    assert "there is no bucket 9-9" in eyes.ask("/show/9-9", status=404)["reason"]
