"""What counts as lost: a ledger that is gone and was not read to its end. A gap in a ledger that is left is
none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from geminga.clock import RealClock
from geminga.pipeline.client import entry_stream
from geminga.pipeline.client.kept_connections import KeptConnections
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.columns.message_id import EARLIEST, MessageId, parse
from geminga.pipeline.errors import DataLost
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.topics.splits import cut
from geminga.pipeline.topics.splitting import Splitting
from geminga.pipeline.topics.streaming import ENDED, Offsets, StreamPlan
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import eventually, receive
from tests.pipeline.conftest import Topics
from tests.pipeline.topics.marked_broker import MarkedBroker
from tests.pipeline.topics.test_topics import read_values

ENTRIES = 10
"""Of a full ledger."""
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
APPLICATION = "application"
NAME = "persistent://public/default/t"
WITH_ADMIN = pytest.mark.parametrize("admin_url", [True, False], ids=["admin", "without"])


# -- what brokers do not send -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _keeps_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_stream, "KEPT", KeptConnections(connections_max=0))


@pytest.fixture
def serve() -> Iterator[Callable[..., MarkedBroker]]:
    brokers: list[MarkedBroker] = []

    def start(*given: Any) -> MarkedBroker:
        brokers.append(MarkedBroker(*given))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.close()


def values(broker: MarkedBroker, wanted: Range) -> list[str]:
    maker = ColumnMaker(NAME, pa.schema([("value", pa.binary())]))
    batches = read_range(broker.access, wanted, maker, poll_timeout_s=10)
    return [value.decode() for batch in batches for value in batch.column(0).to_pylist()]


def names(positions: list[tuple[int, int]]) -> list[str]:
    return [f"{ledger}:{entry}" for ledger, entry in positions]


def markers() -> set[tuple[int, int]]:
    """Of transactions: aborted messages at the begin, in the middle and at the end of ledgers of 12, and a
    ledger of nothing else.
    """
    ranges = {7: [(5, 8), (10, 12)], 8: [(0, 3), (11, 12)], 9: [(0, 12)], 10: [(0, 1), (2, 5)]}
    return {(ledger, entry) for ledger, parts in ranges.items() for part in parts for entry in range(*part)}


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 7, 12, 20, 48])
def test_splits_of_a_topic_with_transactions_lose_nothing(
    serve: Callable[..., MarkedBroker], splits: int
) -> None:
    broker = serve({7: 12, 8: 12, 9: 12, 10: 12}, markers())
    ledgers = [Ledger(ledger, 12) for ledger in broker.lengths]
    for known in (ledgers, []):
        for start in (EARLIEST, MessageId(7, 6, 0)):
            whole = Range(NAME, start, MessageId(10, 12, 0), strict=start > EARLIEST, ends_with_message=True)
            parts = cut([(whole, known)], Splitting(of_each=splits))
            found = [value for part in parts for value in values(broker, part)]
            assert found == names([each for each in broker.visible if each >= start.entry])


@pytest.mark.parametrize("check_previous", [True, False])
def test_micro_batches_of_a_topic_with_transactions_lose_nothing(
    serve: Callable[..., MarkedBroker], check_previous: bool
) -> None:
    """From every position to every position behind it; what is known of ledgers, or not."""
    broker = serve({7: 3, 8: 3, 9: 2}, {(7, 1), (7, 2), (8, 0), (8, 2)})
    places = [MessageId(*each, 0) for each in (*broker._entries(), (9, 2))]
    for closed in ((), (Ledger(7, 3), Ledger(8, 3))):
        for first, start in enumerate(places):
            for end in places[first + 1 :]:
                wanted = Range(
                    NAME, start, end, check_previous=check_previous, strict=not check_previous,
                    ends_with_message=True, closed=closed, unknown_end="lost",
                )  # fmt: skip
                due = [each for each in broker.visible if start.entry <= each < end.entry]
                assert values(broker, wanted) == names(due), (start, end)


@pytest.mark.parametrize("closed", [(), (Ledger(7, 3), Ledger(8, 3))])
@pytest.mark.parametrize("start", ["7:0:0", "7:1:0", "7:1:2", "8:0:0"])
def test_ledgers_that_are_gone_are_lost(
    serve: Callable[..., MarkedBroker], start: str, closed: tuple[Ledger, ...]
) -> None:
    broker = serve({9: 3})
    wanted = Range(
        NAME, parse(start), MessageId(9, 3, 0), check_previous=True, ends_with_message=True, closed=closed,
        unknown_end="lost",
    )  # fmt: skip
    with pytest.raises(DataLost, match="the rest was trimmed.*or the topic was deleted and created again"):
        values(broker, wanted)


def test_a_ledger_whose_end_is_known_may_go(serve: Callable[..., MarkedBroker]) -> None:
    broker = serve({9: 3})
    everything = names(broker.visible)

    def read(start: MessageId, **more: Any) -> list[str]:
        wanted = Range(NAME, start, MessageId(9, 3, 0), check_previous=True, ends_with_message=True, **more)
        return values(broker, wanted)

    assert read(MessageId(8, 3, 0), closed=(Ledger(8, 3),)) == everything
    assert read(MessageId(8, 3, 0), next_ledger=9) == everything
    with pytest.raises(DataLost, match="asked for"):
        read(MessageId(8, 3, 0), closed=(Ledger(8, 4),))
    with pytest.raises(DataLost, match="asked for"):
        read(MessageId(7, 3, 0), closed=(Ledger(7, 3), Ledger(8, 1)))
    with pytest.raises(DataLost, match="Either it ended there.*Set unknownLedgerEnd=warn"):
        read(MessageId(7, 3, 0), next_ledger=8)


def test_a_ledger_that_goes_while_it_is_read_is_lost(serve: Callable[..., MarkedBroker]) -> None:
    """Readers hold no ledger; a broker goes on with the next one that is left."""
    for closed in ((Ledger(7, 3), Ledger(8, 3)), (Ledger(7, 4),), ()):
        broker = serve({7: 3, 9: 3}, set(), {7})
        wanted = Range(NAME, EARLIEST, MessageId(9, 3, 0), ends_with_message=True, closed=closed)
        with pytest.raises(DataLost, match="7:3:0"):
            values(broker, wanted)
    broker = serve({7: 3, 9: 3}, set(), {7})
    assert (
        len(
            values(
                broker,
                Range(NAME, EARLIEST, MessageId(9, 3, 0), ends_with_message=True, closed=(Ledger(7, 3),)),
            )
        )
        == 6
    )


# -- ledgers that are deleted ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """Ledgers are full after a few entries, and go when all subscriptions have acknowledged them."""
    with BrokerProcess(tmp_path_factory.mktemp("loss") / "data", settings=SETTINGS) as process:
        yield process.endpoints


class Story:
    """A stream without a subscription beside an application that acknowledges."""

    def __init__(self, topics: Topics, topic: str, client: pulsar.Client) -> None:
        self._topics = topics
        self._admin = Admin(topics.endpoints.web_url)
        self.topic = topic
        self._producer = client.create_producer(topic, batching_enabled=False)
        self._consumer = client.subscribe(topic, APPLICATION, pulsar.ConsumerType.Shared)
        self._plans: list[StreamPlan] = []
        self.sent = 0
        self.last_ledger = -1
        """Of the last message: the newest ledger may be the next one, which is empty."""

    def close(self) -> None:
        for plan in self._plans:
            plan.close()

    def options(self, *, admin_url: bool, **more: str) -> dict[str, str]:
        given = {"startingOffsets": "earliest"} | more
        return given | ({"admin.url": self._topics.endpoints.web_url} if admin_url else {})

    def plan(self, *, admin_url: bool, **more: str) -> StreamPlan:
        plan = StreamPlan(self._topics.options(self.topic, **self.options(admin_url=admin_url, **more)))
        self._plans.append(plan)
        return plan

    def send(self, count: int) -> list[int]:
        sent = list(range(self.sent, self.sent + count))
        for number in sent:
            self.last_ledger = self._producer.send(b"%d" % number).ledger_id()
        self.sent += count
        return sent

    def consume(self, count: int) -> None:
        """By the application; what it has acknowledged may go."""
        for _ in range(count):
            self._consumer.acknowledge(receive(self._consumer))

    def leave(self) -> None:
        """What the application has acknowledged is with the broker."""
        self._consumer.close()

    def ledgers(self) -> list[int]:
        stats = self._admin.get(f"/admin/v2/{topic_path(self.topic)}/internalStats").json()
        return [ledger["ledgerId"] for ledger in stats["ledgers"]]

    def unload(self) -> None:
        assert self._admin.put(f"/admin/v2/{topic_path(self.topic)}/unload").status == 204

    def set_to_the_end(self, subscription: str) -> None:
        now_ms = int(RealClock().now_ms()) + 1000
        path = f"/admin/v2/{topic_path(self.topic)}/subscription/{subscription}/resetcursor/{now_ms}"
        assert self._admin.post(path).status == 204

    def truncate(self) -> None:
        """Every ledger but the newest, which is empty, goes."""
        assert self._admin.delete(f"/admin/v2/{topic_path(self.topic)}/truncate").status == 204

    def wait_until_gone(self, ledger_id: int) -> None:
        def is_gone() -> bool:
            self._admin.post(f"/admin/v2/{topic_path(self.topic)}/trim")
            return ledger_id not in self.ledgers()

        eventually(is_gone, 10, what=f"ledger {ledger_id} deleted")

    def trigger(
        self, plan: StreamPlan, offsets: Offsets, *, limited: bool = False
    ) -> tuple[Offsets, list[int]]:
        end = plan.latest(offsets, limited=limited)
        found = [
            int(value) for wanted in plan.ranges(offsets, end) for value in read_values(self._topics, wanted)
        ]
        return end, found

    def position(self, offsets: Offsets) -> MessageId:
        return parse(offsets[self.topic])


@pytest.fixture
def story(topics: Topics, topic: str, client: pulsar.Client) -> Iterator[Story]:
    made = Story(topics, topic, client)
    yield made
    made.close()


@WITH_ADMIN
@pytest.mark.parametrize("exact", ["true", "false"])
def test_whole_ledgers_that_vanish_before_a_stream_has_begun_them_are_lost(
    story: Story, admin_url: bool, exact: str
) -> None:
    story.send(ENTRIES * 3 + 5)
    limits = {"maxRowsPerTrigger": str(ENTRIES), "exactRowsPerTrigger": exact}
    plan = story.plan(admin_url=admin_url, **limits)
    offsets, found = story.trigger(plan, plan.initial(), limited=True)
    assert found == list(range(ENTRIES))
    ledgers = story.ledgers()
    story.consume(ENTRIES * 3)
    story.wait_until_gone(ledgers[2])
    for again in (plan, story.plan(admin_url=admin_url, **limits)):
        with pytest.raises(DataLost, match="failOnDataLoss=false"):
            story.trigger(again, offsets, limited=True)


@WITH_ADMIN
def test_a_ledger_that_goes_when_a_limit_has_stopped_at_its_end_is_not_lost(
    story: Story, admin_url: bool
) -> None:
    story.send(ENTRIES * 2 + 5)
    limits = {"maxRowsPerTrigger": str(ENTRIES), "exactRowsPerTrigger": "true"}
    plan = story.plan(admin_url=admin_url, **limits)
    offsets, _ = story.trigger(plan, plan.initial(), limited=True)
    ledgers = story.ledgers()
    story.consume(ENTRIES)
    story.wait_until_gone(ledgers[0])
    for again in (plan, story.plan(admin_url=admin_url, **limits)):
        assert story.trigger(again, offsets, limited=True)[1] == list(range(ENTRIES, ENTRIES * 2))


@WITH_ADMIN
@pytest.mark.parametrize("entry", [0, 1])
def test_a_stream_cannot_begin_in_a_ledger_that_is_gone(story: Story, admin_url: bool, entry: int) -> None:
    story.send(ENTRIES * 2)
    (first, *_) = story.ledgers()
    story.consume(ENTRIES * 2)
    story.wait_until_gone(first)
    story.send(1)
    start = {story.topic: f"{first}:{entry}:0"}
    plan = story.plan(admin_url=admin_url, startingOffsets=json.dumps(start))
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        story.trigger(plan, plan.initial())


def caught_up(story: Story, plan: StreamPlan) -> Offsets:
    """Everything is read, and the ledger is full."""
    sent = story.send(ENTRIES)
    offsets, found = story.trigger(plan, plan.initial())
    assert found == sent
    return offsets


@pytest.mark.parametrize("meanwhile", ["nothing", "trigger"])
def test_a_caught_up_stream_outlives_its_ledger(story: Story, meanwhile: str) -> None:
    """An admin URL tells that nothing came between, also after ledgers that the stream never saw as full."""
    plan = story.plan(admin_url=True)
    offsets = caught_up(story, plan)
    for _ in range(3):
        ledger_id = story.position(offsets).ledger_id
        story.consume(ENTRIES)
        if meanwhile == "trigger":
            assert plan.latest(offsets, limited=False) == offsets
        sent = story.send(1)
        story.wait_until_gone(ledger_id)
        sent += story.send(ENTRIES - 1)
        offsets, found = story.trigger(plan, offsets)
        assert found == sent


def test_a_caught_up_stream_that_missed_a_ledger_fails(story: Story) -> None:
    plan = story.plan(admin_url=True)
    offsets = caught_up(story, plan)
    story.consume(ENTRIES)
    story.send(ENTRIES)
    story.consume(ENTRIES)
    second = story.last_ledger
    story.send(ENTRIES)
    story.wait_until_gone(second)
    with pytest.raises(DataLost, match="the rest was trimmed"):
        story.trigger(plan, offsets)


def test_without_an_admin_url_an_option_answers_for_a_caught_up_stream(story: Story) -> None:
    plan = story.plan(admin_url=False)
    offsets = caught_up(story, plan)
    story.consume(ENTRIES)
    sent = story.send(5)
    story.wait_until_gone(story.position(offsets).ledger_id)
    with pytest.raises(DataLost, match="ended there and nothing is missing, or .*Set unknownLedgerEnd=warn"):
        story.trigger(plan, offsets)
    relaxed = story.plan(admin_url=False, unknownLedgerEnd="warn")
    with pytest.warns(UserWarning, match="because unknownLedgerEnd is warn"):
        assert story.trigger(relaxed, offsets)[1] == sent


def test_an_offset_says_that_its_ledger_ended_there(story: Story) -> None:
    """A checkpoint keeps it, and a query that is started again knows it though the ledger is gone."""
    plan = story.plan(admin_url=True)
    sent = story.send(ENTRIES + 1)
    first = story.ledgers()[0]
    end = {story.topic: f"{first}:{ENTRIES}:0"}
    offsets = plan.initial()
    limited = story.plan(admin_url=True, maxRowsPerTrigger=str(ENTRIES))
    offsets, found = story.trigger(limited, offsets, limited=True)
    assert found == sent[:ENTRIES]
    assert offsets[story.topic] == end[story.topic]
    assert json.loads(offsets[ENDED]) == {"version": 1, "next": {story.topic: story.ledgers()[1]}}
    story.consume(ENTRIES)
    story.wait_until_gone(first)
    for admin_url in (True, False):
        again = story.plan(admin_url=admin_url)
        assert story.trigger(again, offsets)[1] == sent[ENTRIES:]
    newer = offsets | {ENDED: json.dumps({"version": 2, "next": "unknown"})}
    for unknown in (end, newer):  # as an older version wrote it, or a newer one
        with pytest.raises(DataLost):
            story.trigger(story.plan(admin_url=False), unknown)
        relaxed = story.plan(admin_url=False, unknownLedgerEnd="warn")
        with pytest.warns(UserWarning, match="unknownLedgerEnd"):
            assert story.trigger(relaxed, unknown)[1] == sent[ENTRIES:]


@WITH_ADMIN
@pytest.mark.parametrize("read", [ENTRIES - 2, ENTRIES])
def test_a_subscription_tells_what_was_deleted_unread(story: Story, admin_url: bool, read: int) -> None:
    """Truncated while no query runs."""
    options = {
        "predefinedSubscription": "stream",
        "maxRowsPerTrigger": str(read),
        "exactRowsPerTrigger": "true",
    }
    plan = story.plan(admin_url=admin_url, **options)
    story.send(ENTRIES)
    offsets, found = story.trigger(plan, plan.initial(), limited=True)
    plan.acknowledge(offsets)
    assert len(found) == read
    story.unload()
    story.truncate()
    story.send(5)
    again = story.plan(admin_url=admin_url, **options)
    if read < ENTRIES:
        with pytest.raises(DataLost, match="the rest was trimmed"):
            story.trigger(again, offsets)
    else:
        assert story.trigger(again, offsets)[1] == list(range(ENTRIES, ENTRIES + 5))


def pulsars(monkeypatch: pytest.MonkeyPatch, plan: StreamPlan, story: Story) -> None:
    """The subscription stands where Pulsar moves it when it deletes a ledger of a loaded topic."""
    following = {story.topic: (story.ledgers()[-1], -1)}
    monkeypatch.setattr(plan._subscriptions, "mark_deletes", lambda topics: following)


@WITH_ADMIN
@pytest.mark.parametrize("before", ["nothing", "an idle trigger", "the last micro-batch again"])
def test_a_query_that_was_restarted_asks_where_pulsar_has_moved_its_subscription(
    story: Story, admin_url: bool, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running one does not: between two of its micro-batches it is taken for its own doing."""
    plan = story.plan(admin_url=admin_url, predefinedSubscription="stream")
    story.send(ENTRIES)
    start = plan.initial()
    offsets, _ = story.trigger(plan, start)
    again = story.plan(admin_url=admin_url, predefinedSubscription="stream")
    if before == "the last micro-batch again":
        again.ranges(start, offsets)
    plan.acknowledge(offsets)
    story.unload()
    story.truncate()
    if before == "an idle trigger":
        assert again.latest(offsets, limited=False) == offsets
    story.send(5)
    for one in (again, plan):
        pulsars(monkeypatch, one, story)
        if one is plan or before == "the last micro-batch again":
            assert story.trigger(one, offsets)[1] == list(range(ENTRIES, ENTRIES + 5))
        else:
            with pytest.raises(DataLost, match="Set unknownLedgerEnd=warn"):
                story.trigger(one, offsets)


@WITH_ADMIN
def test_a_subscription_that_was_set_to_the_end_of_an_empty_ledger_tells_the_loss(
    story: Story, admin_url: bool
) -> None:
    limits = {"maxRowsPerTrigger": str(ENTRIES - 2), "exactRowsPerTrigger": "true"}
    plan = story.plan(admin_url=admin_url, predefinedSubscription="stream", **limits)
    story.send(ENTRIES)
    offsets, _ = story.trigger(plan, plan.initial(), limited=True)
    first = story.ledgers()[0]
    plan.acknowledge(offsets)
    story.consume(ENTRIES)
    story.leave()
    story.unload()
    story.set_to_the_end("stream")
    story.wait_until_gone(first)
    story.send(5)
    with pytest.raises(DataLost, match="the rest was trimmed"):
        story.trigger(plan, offsets)


def test_a_topic_that_the_options_no_longer_name_is_not_called_gone(story: Story, topics: Topics) -> None:
    story.send(1)
    plan = story.plan(admin_url=False)
    offsets = plan.latest(plan.initial(), limited=False)
    other = f"{story.topic}-other"
    topics.write(other, {"value": [b"1"]})
    elsewhere = StreamPlan(topics.options(other))
    try:
        with pytest.raises(DataLost, match="the options .* no longer name it; the topic is there"):
            elsewhere.latest(offsets, limited=False)
    finally:
        elsewhere.close()


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_emptied_after_planning(
    story: Story, topics: Topics, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr("tests.pipeline.topics.test_topics.POLL_TIMEOUT_S", 1)
    story.send(ENTRIES)
    options = story.options(admin_url=False, failOnDataLoss=str(fails).lower())
    (wanted,) = plan_batch(topics.options(story.topic, splitsPerPartition="1", **options))
    story.consume(ENTRIES)
    first = story.ledgers()[0]
    story.truncate()
    assert first not in story.ledgers()
    if fails:
        with pytest.raises(DataLost, match="nothing is left of it|were there when the query was planned"):
            read_values(topics, wanted)
    else:
        assert read_values(topics, wanted) == []
