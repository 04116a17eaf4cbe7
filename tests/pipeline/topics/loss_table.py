"""Each way in which data go, or seem to go, and what the pipeline says: the right rows, or that they are
lost.

    python -m tests.pipeline.topics.loss_table                                   a Geminga of its own
    python -m tests.pipeline.topics.loss_table --url pulsar://localhost:6650 --web http://localhost:8080

Another broker needs `managedLedgerMaxEntriesPerLedger=10`, `managedLedgerMinLedgerRolloverTimeMinutes=0`,
and for transactions `transactionCoordinatorEnabled=true`. Each way is tried at each boundary (in a ledger, at
its end, at the end of the topic), by a batch query, in splits, by a stream, and by a stream with a
subscription, each with and without admin URL. Plan or offset are from before, the reading is after it; of
transactions, the plan is after them. Right is what an
official reader finds: if all that is due is left, these rows, else "lost". Without admin URL a stream may ask
with `unknownLedgerEnd` if its ledger is gone. The exit code is 1 if a cell is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from geminga.pipeline.errors import DataLost
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.streaming import StreamPlan
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.pipeline.conftest import Topics
from tests.pipeline.topics import test_topics
from tests.pipeline.topics.test_topics import read_values
from tests.pipeline.topics.transactions import Transactions

ENTRIES = 10
SENT = 25
"""Before anything happens: two ledgers, and a part of a third one."""
AFTER = 5
BOUNDARIES = (10, 15, 25)
SPLITS = 23
"""With transactions, some of them begin with messages that a reader does not see."""
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
MODES = ("batch", "splits", "stream", "subscription")
APPLICATION, STREAM = "application", "stream"
TRIM_SECONDS = 0.3
POLL_SECONDS = 4
_topics = itertools.count()


def _pause(seconds: float) -> None:
    """For what a broker does in the background and says nothing of."""
    threading.Event().wait(seconds)


class NotOffered(Exception):
    """The broker does not have that."""


class World:
    """One topic, an application that consumes it, and what was sent."""

    def __init__(self, endpoints: Endpoints, client: pulsar.Client) -> None:
        self.endpoints = endpoints
        self.topics = Topics(endpoints)
        self.client = client
        self.admin = Admin(endpoints.web_url)
        self.topic = f"persistent://public/default/loss-{os.getpid()}-{next(_topics)}"
        self.path = f"/admin/v2/{topic_path(self.topic)}"
        self.sent = 0
        self.aborted: set[int] = set()
        self.is_new = False
        """Whether the topic was deleted and created again, or unloaded: then a stream may not know."""
        self._open()
        self.send(SENT)

    def _open(self) -> None:
        self._consumer = self.client.subscribe(self.topic, APPLICATION, pulsar.ConsumerType.Shared)
        self._producer = self.client.create_producer(self.topic, batching_enabled=False)

    def close(self) -> None:
        for each in (self._consumer, self._producer):
            with contextlib.suppress(pulsar.PulsarException):
                each.close()
        self.admin.delete(f"{self.path}?force=true")

    def numbers(self, count: int) -> list[bytes]:
        found = [b"%d" % number for number in range(self.sent, self.sent + count)]
        self.sent += count
        return found

    def send(self, count: int = ENTRIES) -> None:
        for value in self.numbers(count):
            self._producer.send(value)

    def consume(self, count: int = SENT) -> None:
        for _ in range(count):
            self._consumer.acknowledge(self._consumer.receive(10_000))
        self._consumer.close()  # its acknowledgements are flushed
        self._consumer = self.client.subscribe(self.topic, APPLICATION, pulsar.ConsumerType.Shared)
        self.trim()

    def trim(self) -> None:
        self.asked("POST", f"{self.path}/trim")
        _pause(TRIM_SECONDS)

    def asked(self, method: str, path: str, body: object = None) -> None:
        answer = self.admin.request(method, path, body)
        if answer.status not in (200, 204):
            raise NotOffered(f"{answer.status} {answer.text[:60]}")

    def subscriptions(self) -> list[str]:
        """Without those of readers."""
        return sorted({APPLICATION, STREAM} & self.admin.stats(self.topic)["subscriptions"].keys())

    def unload(self) -> None:
        self.asked("PUT", f"{self.path}/unload")
        self.is_new = True

    def anew(self) -> None:
        self.close()
        self._open()
        self.is_new = True
        self.send(SENT + ENTRIES)

    @contextlib.contextmanager
    def transactions(self) -> Iterator[Transactions]:
        parts = urlsplit(self.endpoints.service_url)
        assert parts.hostname is not None
        assert parts.port is not None
        made = Transactions((parts.hostname, parts.port), self.topic)
        try:
            with made:
                yield made
        except (AssertionError, TimeoutError) as error:
            raise NotOffered(f"transactions: {error}") from None

    def transact(self, count: int, *, commits: bool) -> None:
        with self.transactions() as transactions:
            numbers = self.numbers(count)
            transactions.end(transactions.begin(numbers), commits=commits)
        if not commits:
            self.aborted |= {int(number) for number in numbers}

    def ledgers(self) -> set[int]:
        return {each["ledgerId"] for each in self.admin.get(f"{self.path}/internalStats").json()["ledgers"]}

    def left(self) -> dict[int, tuple[int, int]]:
        """What an official reader finds, and where."""
        reader = self.client.create_reader(self.topic, pulsar.MessageId.earliest)
        found = {}
        while reader.has_message_available():
            try:
                message = reader.read_next(3000)
            except pulsar.Timeout:
                break  # an open transaction
            message_id = message.message_id()
            found[int(message.data())] = (message_id.ledger_id(), message_id.entry_id())
        reader.close()
        return found


# -- what happens ------------------------------------------------------------------------------------------


def nothing(world: World) -> None:
    pass


def all_consumed(world: World) -> None:
    world.consume()


def first_ledger_consumed(world: World) -> None:
    world.consume(ENTRIES)


def consumed_and_rolled_over(world: World) -> None:
    world.consume()
    world.send()
    world.trim()


def consumed_twice(world: World) -> None:
    """Whole ledgers come and go unseen."""
    world.consume()
    world.send(2 * ENTRIES)
    world.consume(2 * ENTRIES)
    world.send()
    world.trim()


def rolled_over(world: World) -> None:
    world.send(2 * ENTRIES)


def unloaded(world: World) -> None:
    world.unload()


def unloaded_and_consumed(world: World) -> None:
    world.unload()
    world.consume()
    world.send()
    world.trim()


def truncated(world: World) -> None:
    world.asked("DELETE", f"{world.path}/truncate")


def unloaded_and_truncated(world: World) -> None:
    world.unload()
    world.send(1)
    world.asked("DELETE", f"{world.path}/truncate")


def skipped(world: World) -> None:
    for name in world.subscriptions():
        world.asked("POST", f"{world.path}/subscription/{name}/skip_all")
    world.send()
    world.trim()


def skipped_and_unloaded(world: World) -> None:
    """All that was sent is gone, and subscriptions stand before the first of the new ledger."""
    for name in world.subscriptions():
        world.asked("POST", f"{world.path}/subscription/{name}/skip_all")
    world.unload()
    world.trim()


def truncated_when_unloaded(world: World) -> None:
    world.unload()
    world.asked("DELETE", f"{world.path}/truncate")
    _pause(TRIM_SECONDS)


def expired(world: World) -> None:
    _pause(1.2)
    for name in world.subscriptions():
        world.asked("POST", f"{world.path}/subscription/{name}/expireMessages/1")
    _pause(TRIM_SECONDS)
    world.send()
    world.trim()


def compacted(world: World) -> None:
    world.asked("PUT", f"{world.path}/compaction")
    _pause(TRIM_SECONDS)


def made_anew(world: World) -> None:
    world.anew()


def committed(world: World) -> None:
    for _ in range(6):
        world.transact(3, commits=True)


def aborted(world: World) -> None:
    for number in range(8):
        world.transact(3, commits=number % 2 == 0)


def aborted_to_the_end_and_consumed(world: World) -> None:
    world.transact(ENTRIES, commits=False)
    world.consume()
    world.send()
    world.trim()


def opened(world: World) -> None:
    """Readers see nothing of a transaction, nor of what is behind it, until it ends."""
    with world.transactions() as transactions:
        transactions.begin(world.numbers(3))


WAYS: tuple[Callable[[World], None], ...] = (
    nothing, all_consumed, first_ledger_consumed, consumed_and_rolled_over, consumed_twice, rolled_over,
    unloaded, unloaded_and_consumed, truncated, unloaded_and_truncated,
    truncated_when_unloaded, skipped, skipped_and_unloaded, expired, compacted,
    made_anew, committed, aborted, aborted_to_the_end_and_consumed, opened,
)  # fmt: skip


PLANNED_AFTER = (committed, aborted, opened)


# -- what is read ------------------------------------------------------------------------------------------


def word_of(world: World, way: Callable[[World], None], mode: str, boundary: int, admin_url: bool) -> str:
    """What comes out, with a "wrong" in it if it is."""
    options = {"admin.url": world.endpoints.web_url} if admin_url else {}
    before = world.left()
    places = [before[number] for number in sorted(before)]
    if mode in ("batch", "splits"):
        options["splitsPerPartition"] = "1" if mode == "batch" else str(SPLITS)
        first = 0
        if boundary < SENT:
            first, (ledger_id, entry_id) = boundary, places[boundary]
            options["startingOffsets"] = json.dumps({world.topic: f"{ledger_id}:{entry_id}:0"})
        if way in PLANNED_AFTER:
            way(world)
            world.send(AFTER)
            planned = plan_batch(world.topics.options(world.topic, **options))
            due = set(range(first, SENT if way is opened else world.sent)) - world.aborted
        else:
            planned = plan_batch(world.topics.options(world.topic, **options))
            due = set(range(first, SENT))
            way(world)
            world.send(AFTER)
        return judged(world, lambda: [v for each in planned for v in read_values(world.topics, each)], due,
                      may_ask=False, from_earliest=boundary == SENT)  # fmt: skip
    if mode == "subscription":
        options["predefinedSubscription"] = STREAM
    options |= {"maxRowsPerTrigger": str(boundary), "exactRowsPerTrigger": "true"}
    plan = StreamPlan(world.topics.options(world.topic, startingOffsets="earliest", **options))
    try:
        start = plan.initial()
        offsets = plan.latest(start, limited=True)
        values = [v for each in plan.ranges(start, offsets) for v in read_values(world.topics, each)]
        assert len(values) == boundary, values
        assert plan.latest(offsets, limited=False)
        way(world)
        world.send(AFTER)
        due = set(range(boundary, SENT if way is opened else world.sent)) - world.aborted

        def trigger() -> list[bytes | None]:
            end = plan.latest(offsets, limited=False)
            return [v for each in plan.ranges(offsets, end) for v in read_values(world.topics, each)]

        is_gone = int(offsets[world.topic].split(":")[0]) not in world.ledgers()
        may_ask = is_gone and (world.is_new or (not admin_url and mode == "stream"))
        return judged(world, trigger, due, may_ask=may_ask, from_earliest=False)
    finally:
        plan.close()


def judged(
    world: World, read: Callable[[], list[bytes | None]], due: set[int], *, may_ask: bool, from_earliest: bool
) -> str:
    try:
        found = [int(value or b"-1") for value in read()]
    except DataLost as error:
        missing = due - world.left().keys()  # asked afterwards: brokers trim in the background
        word = "asks" if "unknownLedgerEnd" in str(error) else "lost"
        is_right = bool(missing) or may_ask
        return word if is_right else f"wrong: {word} of {len(due)} that are left: {str(error)[:200]}"
    except Exception as error:
        return f"wrong: {type(error).__name__} {str(error)[:200]}"
    if found == sorted(due):
        return "rows"
    left = set(world.left())
    missing = due - left
    if found == sorted(due & left) and from_earliest:
        return "rows left"
    return f"wrong: {len(found)} rows, {len(due)} were due, {len(missing)} of them are gone"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    parser.add_argument("--web")
    parser.add_argument("--only", default="", help="ways whose names begin so, such as committed,aborted")
    given = parser.parse_args()
    test_topics.POLL_TIMEOUT_S = POLL_SECONDS
    with contextlib.ExitStack() as stack:
        if given.url:
            endpoints = Endpoints(given.url, given.web, False)
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            process = stack.enter_context(BrokerProcess(directory / "data", settings=SETTINGS))
            endpoints = process.endpoints
        client = pulsar.Client(endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        return table(endpoints, client, given.only)


def table(endpoints: Endpoints, client: pulsar.Client, only: str) -> int:
    columns = [(mode, admin_url) for mode in MODES for admin_url in (True, False)]
    print(
        f"{'way, read up to':44}" + "".join(f"{mode[:7]}{'+admin' if url else '':7}" for mode, url in columns)
    )
    words: Counter[str] = Counter()
    wrong: list[str] = []
    for way, boundary in itertools.product(WAYS, BOUNDARIES):
        if not way.__name__.startswith(tuple(only.split(","))):
            continue
        cells = []
        for mode, admin_url in columns:
            world = World(endpoints, client)
            try:
                cell = word_of(world, way, mode, boundary, admin_url)
            except NotOffered:
                cell = "not here"
            finally:
                world.close()
            if cell.startswith("wrong"):
                wrong.append(f"{way.__name__}, {boundary}, {mode}, admin {admin_url}: {cell}")
                cell = "WRONG"
            words[cell] += 1
            cells.append(cell)
        print(
            f"{way.__name__.replace('_', ' ') + f', {boundary}':44}" + "".join(f"{cell:14}" for cell in cells)
        )
        sys.stdout.flush()
    print(", ".join(f"{word}: {count}" for word, count in words.most_common()))
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
