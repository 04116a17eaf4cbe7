"""Shipping a delivery log: in order, once, through a topic that fails, in messages that are not too large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from geminga.clock import TrioClock
from geminga.delivery_log import shipping
from geminga.delivery_log.delivery_log import DeliveryLog
from geminga.delivery_log.log_format import Kind, decode_segment, file_name
from geminga.delivery_log.log_reader import LogPosition, LogReader, Written
from geminga.delivery_log.shipping import Shipping
from geminga.errors import CorruptData, NotAllowed, TopicTerminated
from geminga.storage.disk import RealDisk


class Topic:
    """Takes segments; refuses them while `refuses`, after it has stored them if `stores_anyway`."""

    def __init__(self, segment_bytes_max: int = 1 << 20) -> None:
        self.segment_bytes_max = segment_bytes_max
        self.messages: list[tuple[LogPosition, bytes]] = []
        self.refuses = False
        self.stores_anyway = False
        self.refused = 0

    async def last_position(self) -> LogPosition | None:
        return self.messages[-1][0] if self.messages else None

    async def append(self, segment: bytes, position: LogPosition) -> None:
        await trio.lowlevel.checkpoint()
        if len(segment) > self.segment_bytes_max:
            raise NotAllowed("too large")
        if not self.refuses or self.stores_anyway:
            self.messages.append((position, segment))
        if self.refuses:
            self.refused += 1
            raise TopicTerminated("no more")

    def sequence_ids(self) -> list[int]:
        """Of all events that a test has noted."""
        segments = [decode_segment(segment) for _, segment in self.messages]
        return [
            number
            for segment in segments
            for kind, number in zip(
                segment.columns["kind"].tolist(), segment.columns["sequence_id"].tolist(), strict=True
            )
            if kind == Kind.DUPLICATE
        ]

    def kinds(self) -> list[int]:
        return [kind for _, one in self.messages for kind in decode_segment(one).columns["kind"].tolist()]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "RETRY_S", 0.001)
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 0.001)


async def opened(tmp_path: Path, nursery: trio.Nursery, **sizes: int) -> DeliveryLog:
    given = {"file_bytes_max": 1 << 20, "total_bytes_max": 0, **sizes}
    log = DeliveryLog(f"{tmp_path}/log", RealDisk(), TrioClock(), interval_s=0.001, **given)
    await nursery.start(lambda task_status: log.run(task_status=task_status))
    return log


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - of what files and topics hold
            await trio.sleep(0.002)


async def test_all_comes_once_and_in_order_whatever_the_topic_does(
    tmp_path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    log, topic = await opened(tmp_path, nursery, file_bytes_max=2000), Topic()
    ships = Shipping(log, topic, RealDisk())
    nursery.start_soon(ships.run)
    for number in range(60):
        topic.refuses = number % 20 >= 10
        topic.stores_anyway = number >= 40
        log.duplicate("t", f"p{number}", number, 1)
        await log._write()
        if number % 20 == 19:
            refused = topic.refused
            await until(lambda refused=refused: topic.refused > refused)  # type: ignore[misc]
    topic.refuses = False
    await until(lambda: len(topic.sequence_ids()) >= 60)
    assert topic.sequence_ids() == list(range(60))
    assert len({position.file for position, _ in topic.messages}) > 1
    # Once for each time that it stopped; a fast test may have refused again before anything was shipped.
    assert 1 <= caplog.text.count("cannot be shipped") <= 60
    ships.stop()
    await log.close()


async def test_another_process_goes_on_where_the_last_one_was(tmp_path: Path, nursery: trio.Nursery) -> None:
    topic = Topic()
    for start in range(3):
        log = await opened(tmp_path, nursery)
        ships = Shipping(log, topic, RealDisk())
        async with trio.open_nursery() as inner:
            inner.start_soon(ships.run)
            for number in range(5):
                log.duplicate("t", "p", 5 * start + number, 1)
            last = 5 * start + 4
            await until(lambda last=last: topic.sequence_ids()[-1:] == [last])  # type: ignore[misc]
            ships.stop()
        # What is noted after that is left to the next one, which may find the topic without its messages.
        await log.close()
        if start == 1:
            trimmed, topic.messages = topic.messages, []
    topic.messages = trimmed + topic.messages
    assert topic.sequence_ids() == list(range(15))
    assert topic.kinds().count(Kind.OPENED) == 3
    assert topic.kinds().count(Kind.CLOSED) == 2


async def test_a_segment_that_is_no_message_is_cut(tmp_path: Path, nursery: trio.Nursery) -> None:
    log, topic = await opened(tmp_path, nursery), Topic(600)
    for number in range(100):
        log.duplicate(f"topic-{number % 7}", f"p{number}", number, 1)
    ships = Shipping(log, topic, RealDisk())
    topic.stores_anyway = topic.refuses = True
    nursery.start_soon(ships.run)
    await until(lambda: len(topic.sequence_ids()) == 100)
    assert topic.sequence_ids() == list(range(100))
    names = [(one.topics, one.clients) for one in (decode_segment(data) for _, data in topic.messages)]
    assert all(len(clients) < 30 for _, clients in names)
    ships.stop()
    await log.close()


async def test_what_was_dropped_is_said_once(tmp_path: Path, nursery: trio.Nursery) -> None:
    topic = Topic()
    log = await opened(tmp_path, nursery, file_bytes_max=1)
    ships = Shipping(log, topic, RealDisk())
    nursery.start_soon(ships.run)
    log.duplicate("t", "p", 0, 1)
    await until(lambda: topic.sequence_ids() == [0])
    ships.stop()
    await until(lambda: RealDisk().exists(f"{tmp_path}/log/{shipping.STATE_FILE}"))
    for number in range(1, 6):
        log.duplicate("t", "p", number, 1)
        await log._write()
    for number in range(1, log.written.file - 1):
        RealDisk().unlink(f"{tmp_path}/log/{file_name(number)}")
    nursery.start_soon(Shipping(log, topic, RealDisk()).run)
    await until(lambda: topic.sequence_ids()[-1] == 5)
    assert topic.sequence_ids() == [0, 4, 5]
    assert topic.kinds().count(Kind.MISSED) == 1
    await log.close()


async def test_a_directory_that_was_emptied_is_shipped_from_its_beginning(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    topic = Topic()
    topic.messages = [(LogPosition(7, 1_000, 3), b"")]
    log = await opened(tmp_path, nursery)
    log.duplicate("t", "p", 0, 1)
    nursery.start_soon(Shipping(log, topic, RealDisk()).run)
    await until(lambda: len(topic.messages) > 2)
    topic.messages = topic.messages[1:]
    assert topic.kinds()[:2] == [Kind.MISSED, Kind.OPENED]
    assert topic.sequence_ids() == [0]
    await log.close()


def test_a_torn_end_is_no_gap_and_damage_is(tmp_path: Path) -> None:
    from tests.delivery_log.test_log_format import FILE, SEGMENT

    disk = RealDisk()
    for number, data in ((1, FILE[:-5]), (2, FILE), (3, FILE)):
        (tmp_path / file_name(number)).write_bytes(data)
    damaged = bytearray(FILE)
    damaged[64 + len(SEGMENT)] ^= 1
    (tmp_path / file_name(2)).write_bytes(damaged)
    reader = LogReader(disk, str(tmp_path))
    found = []
    while (read := reader.next(Written(3, 1))) is not None:
        found.append((read.position.file, read.position.segment, read.has_gap))
    assert found == [(1, 0, False), (2, 0, False), (3, 0, True)]


def test_a_place_is_read_back_and_nothing_else_is() -> None:
    position = LogPosition(3, 1_700_000_000_000, 5)
    assert LogPosition.decode(position.encode()) == position
    assert position.before < position._replace(part=0) < position
    for data in (b"", b"[1, 2, 3]", b'[1, 2, 3, "4"]', b"7"):
        with pytest.raises(CorruptData):
            LogPosition.decode(data)
