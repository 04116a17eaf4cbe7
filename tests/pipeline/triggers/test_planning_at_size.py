"""What a driver takes to plan: connections, bytes, ledgers, and how it goes on when a broker is away."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from geminga.clock import RealClock
from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.columns.message_id import EARLIEST
from geminga.pipeline.errors import Access, BadOption, PipelineError
from geminga.pipeline.topics import planning, streaming
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.streaming import Offsets, StreamPlan
from tests.e2e.admin_http import Admin, topic_path
from tests.pipeline.conftest import Topics, triggers
from tests.pipeline.topics.test_topics import read_values

PARTITIONS = 40


class Sockets:
    """Those that this process opens, and the bytes that come over them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self.received_bytes = 0
        sockets = self

        class Counting(socket.socket):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                sockets.opened += 1

            def recv(self, *arguments: Any) -> bytes:
                data = super().recv(*arguments)
                sockets.received_bytes += len(data)
                return data

            def recv_into(self, *arguments: Any) -> int:  # type: ignore[override]
                size = super().recv_into(*arguments)
                sockets.received_bytes += size
                return size

        monkeypatch.setattr(socket, "socket", Counting)


class Stepping(RealClock):
    """Goes on by a step each time that it is looked at."""

    STEP_S = 0.0625

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += self.STEP_S
        return self._now_s


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Sockets:
    return Sockets(monkeypatch)


def unload(admin: Admin, topic: str) -> None:
    """What comes next goes to a new ledger."""
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204


@pytest.fixture
def in_ledgers(topics: Topics, admin: Admin, topic: str) -> Iterator[list[bytes]]:
    """A topic with 400 messages in entries of 2, in four ledgers."""
    values = [b"%d" % number for number in range(400)]
    for at in range(0, 400, 100):
        if at:
            unload(admin, topic)
        topics.write(topic, {"value": values[at : at + 100]}, batchRows="2")
    return values


def test_partitions_are_planned_over_one_connection(
    topics: Topics, admin: Admin, topic: str, sockets: Sockets
) -> None:
    admin.create_partitions(topic, PARTITIONS)
    rows = {
        "value": [b"x"] * PARTITIONS * 5,
        "__partition": [number % PARTITIONS for number in range(PARTITIONS * 5)],
    }
    topics.write(topic, rows, partitioning="partition")
    before = sockets.opened
    assert len(plan_batch(topics.options(topic))) == PARTITIONS
    assert sockets.opened == before + 1
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest", maxRowsPerTrigger="80"))
    try:
        sizes = [
            sum(len(read_values(topics, each)) for each in ranges)
            for ranges in triggers(plan, plan.initial())
        ]
        assert sum(sizes) == PARTITIONS * 5
        assert max(sizes) <= 80
        before = sockets.opened
        end = plan.latest(dict.fromkeys(plan.initial(), "-1:-1:0"), limited=True)
        assert plan.report() is not None
        assert plan.latest(end, limited=True) != end
        assert sockets.opened == before
    finally:
        plan.close()


def test_times_of_many_partitions_are_sought_over_one_connection(
    topics: Topics, admin: Admin, topic: str, sockets: Sockets
) -> None:
    admin.create_partitions(topic, PARTITIONS)
    rows = {"value": [b"x"] * PARTITIONS, "__partition": list(range(PARTITIONS))}
    topics.write(topic, rows, partitioning="partition")
    before = sockets.opened
    assert (
        len(plan_batch(topics.options(topic, startingTime="1", endingTime=str(2**41 + 2**40)))) == PARTITIONS
    )
    assert sockets.opened == before + 1
    later = topics.options(topic, startingTime=str(2**41 + 2**40), publishTimesApartMs="0")
    assert plan_batch(later) == []
    assert sockets.opened == before + 2


@pytest.mark.parametrize("limit", [{"maxRowsPerTrigger": "60000"}, {"maxBytesPerTrigger": "6000000"}])
@pytest.mark.parametrize("asks_admin", [False, True], ids=["binary", "admin"])
def test_a_limited_trigger_reads_little_of_what_it_admits(
    topics: Topics, topic: str, sockets: Sockets, limit: dict[str, str], asks_admin: bool
) -> None:
    topics.write(
        topic, {"value": [bytes([number % 256]) * 100 for number in range(100_000)]}, batchRows="100"
    )
    if asks_admin:
        limit = limit | {"admin.url": topics.endpoints.web_url}
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest", **limit))
    try:
        offsets = plan.initial()
        before = sockets.received_bytes
        end = plan.latest(offsets, limited=True)
        ranges = plan.ranges(offsets, end)
        received = sockets.received_bytes - before
    finally:
        plan.close()
    rows = sum(len(read_values(topics, wanted)) for wanted in ranges)
    assert 54_000 <= rows <= 60_000
    assert received < 0.02 * rows * 100


@pytest.mark.parametrize("splits", ["8", "0"])
def test_a_backlog_of_several_ledgers_is_cut_as_a_batch_is(
    topics: Topics, topic: str, in_ledgers: list[bytes], splits: str
) -> None:
    options = topics.options(topic, startingOffsets="earliest", splitsPerPartition=splits)
    plan, again = StreamPlan(options), StreamPlan(options)
    try:
        start = plan.initial()
        end = plan.latest(start, limited=False)
        ranges = plan.ranges(start, end)
        assert [(part.start, part.end) for part in ranges] == [
            (part.start, part.end) for part in plan_batch(options)
        ]
        assert again.ranges(start, end) == ranges  # after a crash
        assert len(ranges) == (8 if splits == "8" else 3)
        assert [value for part in ranges for value in read_values(topics, part)] == in_ledgers
        middle: Offsets = {topic: str(ranges[len(ranges) // 2].start)}
        rest = [value for part in plan.ranges(middle, end) for value in read_values(topics, part)]
        assert rest == in_ledgers[-len(rest) :]
    finally:
        plan.close()
        again.close()


def test_the_last_entry_before_a_ledger_tells_how_long_the_one_before_is(
    topics: Topics, admin: Admin, topic: str, in_ledgers: list[bytes]
) -> None:
    with TopicQuestions(Access(topics.endpoints.service_url)) as questions:
        last = questions.lasts([topic])[topic]
        assert not isinstance(last, PipelineError)
        at, found = last.end.ledger_id, []
        while at >= 0:
            ((at, entry_id),) = questions.last_before([(topic, at)])
            if entry_id < 0:
                break
            found.append((at, entry_id + 1))
    ledgers = admin.get(f"/admin/v2/{topic_path(topic)}/internalStats").json()["ledgers"]
    assert (
        found[::-1]
        == [(each["ledgerId"], each["entries"]) for each in ledgers if each["entries"]][: len(found)]
    )
    assert len(found) == 3


def test_questions_survive_a_lost_connection_and_an_unloaded_topic(
    topics: Topics, admin: Admin, topic: str
) -> None:
    topics.write(topic, {"value": [b"a"]})
    with TopicQuestions(Access(topics.endpoints.service_url)) as questions:
        first = questions.lasts([topic])[topic]
        for connection in questions.brokers._connections.values():
            connection._connection.socket.shutdown(socket.SHUT_RDWR)
        assert questions.lasts([topic]) == {topic: first}
        unload(admin, topic)
        assert questions.lasts([topic]) == {topic: first}
        (facts,) = questions.first_entries([(topic, EARLIEST)])
        assert facts is not None
        assert facts.rows == 1


def test_files_that_run_out_are_told_as_such(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **named: Any) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(PipelineError, match=r"too many open files.*ulimit -n"):
        plan_batch(topics.options(topic))


def test_a_stream_waits_for_the_rows_of_a_micro_batch(topics: Topics, topic: str) -> None:
    options = topics.options(topic, startingOffsets="earliest", minRowsPerTrigger="50")
    topics.write(topic, {"value": [b"x"] * 40}, batchRows="10")
    plan = StreamPlan(options)
    impatient = StreamPlan(
        topics.options(topic, startingOffsets="earliest", minRowsPerTrigger="50", maxTriggerDelay="0ms")
    )
    try:
        start = plan.initial()
        assert plan.latest(start, limited=True) == start
        assert impatient.latest(start, limited=True) != start
        assert plan.latest(start, limited=False) != start
        topics.write(topic, {"value": [b"x"] * 10}, batchRows="10")
        end = plan.latest(start, limited=True)
        assert sum(len(read_values(topics, part)) for part in plan.ranges(start, end)) == 50
        topics.write(topic, {"value": [b"x"]})
        assert plan.latest(end, limited=True) == end
        plan.fix_target()
        assert plan.latest(end, limited=True) != end  # what is available now waits for nothing
    finally:
        plan.close()
        impatient.close()


def test_the_report_tells_how_far_a_stream_is_behind(
    topics: Topics, topic: str, in_ledgers: list[bytes]
) -> None:
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest", maxRowsPerTrigger="100"))
    try:
        start = plan.initial()
        end = plan.latest(start, limited=True)
        report = plan.report()
        assert report is not None
        behind = report["behind"]
        assert (behind["rows"], behind["entries"], behind["rowsOfWorstPartition"]) == (300, 150, 300)
        assert behind["bytes"] > 0
        assert 0 <= behind["ms"] < 600_000
        while (following := plan.latest(end, limited=True)) != end:
            end = following
        report = plan.report()
        assert report == {
            topic: end[topic],
            "behind": {"rows": 0, "bytes": 0, "entries": 0, "rowsOfWorstPartition": 0},
        }
    finally:
        plan.close()


def test_triggers_that_find_nothing_let_brokers_rest(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's default trigger asks again at once."""
    rests: list[float] = []
    monkeypatch.setattr(streaming, "_wait", rests.append)
    monkeypatch.setattr(streaming, "_CLOCK", Stepping())
    topics.write(topic, {"value": [b"a"]})
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest"))
    try:
        end = plan.latest(plan.initial(), limited=True)
        assert plan.latest(end, limited=True) == end
        topics.write(topic, {"value": [b"b"]})
        assert plan.latest(end, limited=True) != end
        plan.latest(end, limited=True)
    finally:
        plan.close()
    assert rests == [0.0, 0.0, 8 * Stepping.STEP_S, 0.0]


def test_a_trigger_and_its_report_ask_once(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    lasts = TopicQuestions.lasts

    def counting(self: TopicQuestions, names: Any) -> Any:
        asked.extend(names := list(names))
        return lasts(self, names)

    monkeypatch.setattr(TopicQuestions, "lasts", counting)
    topics.write(topic, {"value": [b"a"]})
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest"))
    try:
        end = plan.latest({topic: str(EARLIEST)}, limited=True)
        assert plan.report() == {
            topic: end[topic],
            "behind": {"rows": 0, "bytes": 0, "entries": 0, "rowsOfWorstPartition": 0},
        }
        assert asked == [topic]
        topics.write(topic, {"value": [b"b"]})
        report = plan.report()
    finally:
        plan.close()
    assert report is not None
    assert report["behind"]["rows"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"maxRecordsPerPartition": "1"},
            r"option maxRecordsPerPartition is 1: .* about 200 .*Raise it to 8,",
        ),
        ({"splitsPerPartition": "90"}, r"option splitsPerPartition is 90: .* about 90 splits.*Lower it"),
    ],
)
def test_options_that_ask_for_too_many_splits_are_refused(
    topics: Topics,
    topic: str,
    in_ledgers: list[bytes],
    given: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a stream before its checkpoint has the offsets: what it has once planned stays as it is."""
    monkeypatch.setattr(planning, "SPLITS_OF_OPTIONS_MAX", 60)
    with pytest.raises(BadOption, match=said):
        plan_batch(topics.options(topic, **given))
    options = topics.options(topic, startingOffsets="earliest", **given)
    plan = StreamPlan(options)
    start: Offsets = {topic: str(EARLIEST)}
    try:
        with pytest.raises(BadOption, match=said):
            plan.latest(start, limited=False)
        planned = plan.ranges(start, read_to_the_end(topics, topic) | options.splitting.offsets())
    finally:
        plan.close()
    assert [value for part in planned for value in read_values(topics, part)] == in_ledgers
    enough = {"maxRecordsPerPartition": "8"} if "maxRecordsPerPartition" in given else {}
    assert len(plan_batch(topics.options(topic, **enough))) <= 60


def read_to_the_end(topics: Topics, topic: str) -> Offsets:
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest"))
    try:
        return plan.latest({topic: str(EARLIEST)}, limited=False)
    finally:
        plan.close()


@pytest.mark.parametrize("exact", ["true", "false"])
def test_a_micro_batch_of_a_skewed_topic_is_as_large_as_its_limit(
    topics: Topics, admin: Admin, topic: str, exact: str
) -> None:
    """The large partition comes first, before it is known how little the others have."""
    admin.create_partitions(topic, 4)
    partitions = [0] * 100 + [1, 2, 3]
    topics.write(
        topic, {"value": [b"x"] * 103, "__partition": partitions}, partitioning="partition", batchRows="1"
    )
    options = topics.options(
        topic, startingOffsets="earliest", maxRowsPerTrigger="43", exactRowsPerTrigger=exact
    )
    plan = StreamPlan(options)
    try:
        found = [
            sum(len(read_values(topics, each)) for each in ranges)
            for ranges in triggers(plan, plan.initial())
        ]
    finally:
        plan.close()
    assert found == [43, 43, 17]
