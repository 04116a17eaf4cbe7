"""Rows written exactly once: content tells what is a repetition; all else is written, or refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pulsar
import pyarrow as pa
import pytest

from geminga.pipeline.client.producing import Producer
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.writing.last_entries import StoredEntry, Window, end_before, newest_first
from geminga.pipeline.writing.repetitions import (
    SEARCH_BYTES_MAX,
    TAIL_BYTES,
    Note,
    Search,
    Task,
    note_of,
)
from geminga.pipeline.writing.sequences import bounds, sequence_ids
from geminga.pipeline.writing.task_writer import TaskWriter
from tests.e2e.admin_http import Admin
from tests.pipeline.conftest import Topics

EXACT = {"exactlyOnce": "true", "batchRows": "10"}


@pytest.fixture
def exact_topic(admin: Admin, topic: str) -> str:
    """In a namespace of its own whose broker deduplicates."""
    namespace = topic.rpartition("/")[2]
    assert admin.put(f"/admin/v2/namespaces/public/{namespace}", {}).status == 204
    deduplicate(admin, f"persistent://public/{namespace}/t", True)
    return f"persistent://public/{namespace}/t"


def deduplicate(admin: Admin, topic: str, value: bool) -> None:
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    assert admin.post(f"/admin/v2/namespaces/{namespace}/deduplication", value).status == 204


def forget(admin: Admin, topics: Topics, topic: str) -> None:
    """Have the broker forget all producers of the topic."""
    deduplicate(admin, topic, False)
    topics.write(topic, {"value": [b"while it is off"]})
    deduplicate(admin, topic, True)


def numbers(first: int, past: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, past)]


def attempt(topics: Topics, topic: str, task: Task, values: list[bytes], **more: str) -> None:
    topics.write(topic, {"value": values}, task=task, **(EXACT | more))


def broken_off(topics: Topics, topic: str, task: Task, values: list[bytes], **more: str) -> None:
    """An attempt that dies behind these rows, of which it has sent what fills batches of 10."""

    def some() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": values})
        raise InterruptedError

    writer = TaskWriter(topics.options(topic, **(EXACT | more)), task)
    with pytest.raises(InterruptedError):
        writer.write(some())
    writer.close()


@pytest.mark.parametrize("count", [20, 25, 30])
def test_another_job_under_the_same_prefix_is_refused_and_not_dropped(
    topics: Topics, exact_topic: str, count: int
) -> None:
    attempt(topics, exact_topic, Task("job", 0, 0, run="a"), numbers(0, 25))
    with pytest.raises(PipelineError, match=r"other rows.*\(run a\).*producerNamePrefix of its own"):
        attempt(topics, exact_topic, Task("job", 0, 0, run="b"), numbers(100, 100 + count))
    attempt(topics, exact_topic, Task("job", 0, 0, run="c"), numbers(0, 25))
    assert topics.values(exact_topic) == numbers(0, 25)


def test_more_rows_behind_those_of_a_job_that_was_complete_are_others(
    topics: Topics, exact_topic: str
) -> None:
    for count in (20, 25):
        topic = f"{exact_topic}-{count}"
        attempt(topics, topic, Task("job", 0, 0), numbers(0, count))
        for more in (1, 20):
            with pytest.raises(PipelineError, match="other rows"):
                attempt(topics, topic, Task("job", 0, 0), numbers(0, count + more))
        assert topics.values(topic) == numbers(0, count)


def test_a_job_is_completed_however_it_cuts_batches_now(topics: Topics, exact_topic: str) -> None:
    task = Task("job", 0, 0)
    broken_off(topics, exact_topic, task, numbers(0, 47))
    attempt(topics, exact_topic, task, numbers(0, 100), batchRows="7")
    attempt(topics, exact_topic, task, numbers(0, 100), batchRows="33")
    assert topics.values(exact_topic) == numbers(0, 100)


def test_rows_with_a_delivery_time_are_repeated_too(topics: Topics, exact_topic: str) -> None:
    rows = {
        "value": numbers(0, 30),
        "__key": ["k"] * 30,
        "__deliverAtTime": [1_000 + n if n % 3 else None for n in range(30)],
    }
    for _ in range(2):
        topics.write(exact_topic, rows, task=Task("job", 0, 3), exactlyOnce="true", batchRows="7")
    assert topics.values(exact_topic) == numbers(0, 30)


def test_a_checkpoint_that_was_deleted_is_told(topics: Topics, exact_topic: str) -> None:
    attempt(topics, exact_topic, Task("job", 0, 7), numbers(0, 25))
    with pytest.raises(PipelineError, match=r"has written micro-batch 7, and this is 0.*checkpoint"):
        attempt(topics, exact_topic, Task("job", 0, 0), numbers(100, 110))
    assert topics.values(exact_topic) == numbers(0, 25)


def test_a_producer_that_the_broker_forgot_is_found_on_the_topic(
    topics: Topics, admin: Admin, exact_topic: str
) -> None:
    for batch_id in (0, 6):
        task = Task("job", 0, batch_id, run="a")
        broken_off(topics, exact_topic, task, numbers(0, 47))
        attempt(topics, exact_topic, replace(task, partition=1), numbers(900, 1100))
        forget(admin, topics, exact_topic)
        attempt(topics, exact_topic, replace(task, run="b"), numbers(0, 100))
        forget(admin, topics, exact_topic)
        with pytest.raises(PipelineError, match="other rows"):
            attempt(topics, exact_topic, replace(task, run="c"), numbers(500, 600))
    found = [value for value in topics.values(exact_topic) if value != b"while it is off"]
    assert sorted(map(int, found)) == sorted([*range(100), *range(900, 1100)] * 2)


def test_a_producer_that_was_forgotten_between_micro_batches_goes_on(
    topics: Topics, admin: Admin, exact_topic: str
) -> None:
    attempt(topics, exact_topic, Task("job", 0, 3), numbers(0, 25))
    forget(admin, topics, exact_topic)
    attempt(topics, exact_topic, Task("job", 0, 4), numbers(25, 50))
    assert [value for value in topics.values(exact_topic) if value[:1].isdigit()] == numbers(0, 50)


def test_rows_of_an_older_version_are_not_taken_for_ours(
    client: pulsar.Client, topics: Topics, exact_topic: str
) -> None:
    first = int(sequence_ids(2, 0, 1, 1)[0])
    producer = client.create_producer(exact_topic, producer_name="job-0", initial_sequence_id=first - 1)
    producer.send(b"0")
    producer.close()
    with pytest.raises(PipelineError, match=r"cannot tell.*exactlyOnce=false.*checkRepetition=false"):
        attempt(topics, exact_topic, Task("job", 0, 2), numbers(0, 10))
    attempt(topics, exact_topic, Task("job", 0, 2), numbers(0, 10), checkRepetition="false")
    assert topics.values(exact_topic) == numbers(0, 10)


def test_another_order_of_the_rows_is_refused_unless_content_decides_it(
    topics: Topics, exact_topic: str, admin: Admin
) -> None:
    shuffled = [*numbers(50, 100), *numbers(0, 50)]
    broken_off(topics, exact_topic, Task("job", 0, 0), numbers(0, 47))
    with pytest.raises(PipelineError, match="another order.*taskOrder=content"):
        attempt(topics, exact_topic, Task("job", 0, 0), shuffled)
    assert topics.values(exact_topic) == numbers(0, 40)
    admin.create_partitions(f"{exact_topic}-parts", 3)
    for values in (numbers(0, 100), shuffled, shuffled[::-1]):
        attempt(topics, f"{exact_topic}-parts", Task("job", 0, 0), values, taskOrder="content", batchRows="7")
    assert sorted(map(int, topics.values(f"{exact_topic}-parts"))) == list(range(100))


def test_a_topic_spelled_in_two_ways_has_its_rows_once(topics: Topics, exact_topic: str) -> None:
    short = exact_topic.removeprefix("persistent://")
    columns = {"value": numbers(0, 40), "__topic": [exact_topic, short] * 20}
    rows = pa.RecordBatch.from_pydict(columns)
    options = replace(topics.options(exact_topic, **EXACT), topics=None)
    for batches in ([rows], [rows.slice(0, 13), rows.slice(13)]):
        writer = TaskWriter(options, Task("job", 0, 0))
        try:
            writer.write(batches)
        finally:
            writer.close()
    assert topics.values(exact_topic) == numbers(0, 40)


def test_a_partition_beside_its_topic_is_refused(topics: Topics, admin: Admin, exact_topic: str) -> None:
    admin.create_partitions(exact_topic, 2)
    columns = {"value": numbers(0, 2), "__topic": [f"{exact_topic}-partition-0", exact_topic]}
    writer = TaskWriter(replace(topics.options(exact_topic, **EXACT), topics=None), Task("job", 0, 0))
    with pytest.raises(BadColumns, match="names both .*-partition-0 and its partitioned topic"):
        writer.write([pa.RecordBatch.from_pydict(columns)])
    writer.close()


def test_content_orders_by_all_that_a_row_is_written_with(topics: Topics, topic: str) -> None:
    columns = {
        "value": [b"b", b"a", b"a", None],
        "__key": ["k", "l", "k", "k"],
        "__eventTime": [5, 5, 5, 5],
        "__messageProperties": [[("x", "y")], [], [], []],
        "__deliverAtTime": [None, 1, None, None],
    }
    written = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        name = f"{topic}-{order[0]}"
        rows = {key: [values[row] for row in order] for key, values in columns.items()}
        properties = pa.array(rows["__messageProperties"], pa.map_(pa.string(), pa.string()))
        topics.write(name, rows | {"__messageProperties": properties}, taskOrder="content")
        written.append([(row["value"], row["__key"]) for row in topics.read(name)])
    assert written[0] == written[1]
    assert len(written[0]) == 4


@pytest.mark.parametrize("looks_when_connected", [True, False])
def test_a_writer_whose_name_another_had_meanwhile_does_not_lose_rows_in_silence(
    topics: Topics, exact_topic: str, looks_when_connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found when it connects again; or at its end, as where the other writer's last rows were still on their
    way to the disk when the broker said what it had stored.
    """
    if not looks_when_connected:
        monkeypatch.setattr(Producer, "_check_alone", lambda *_: None)
    first = TaskWriter(topics.options(exact_topic, **EXACT), Task("job", 0, 0, run="a"))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": numbers(0, 5)})
        (lane,) = first._lanes.values()
        lane.producer._connection.close()  # as a network does
        attempt(topics, exact_topic, Task("job", 0, 0, run="b"), numbers(100, 110))
        yield pa.RecordBatch.from_pydict({"value": numbers(5, 10)})

    with pytest.raises(PipelineError, match="another writer|written other rows"):
        first.write(rows())
    first.close()
    assert topics.values(exact_topic) == numbers(100, 110)


@pytest.mark.parametrize(("others", "batch_rows"), [((100, 120), "10"), ((0, 20), "13")])
def test_rows_that_go_on_behind_those_of_another_writer_are_refused(
    topics: Topics, exact_topic: str, others: tuple[int, int], batch_rows: str
) -> None:
    """The broker drops what begins with an id that it knows, and the rows behind it must not hide that: be
    it that another job's are stored under the same ids, or the same rows, cut elsewhere.
    """
    first = TaskWriter(topics.options(exact_topic, **EXACT), Task("job", 0, 0, run="a"))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": numbers(0, 5)})
        (lane,) = first._lanes.values()
        lane.producer._connection.close()
        task = Task("job", 0, 0, run="b")
        broken_off(topics, exact_topic, task, numbers(*others), batchRows=batch_rows)
        yield pa.RecordBatch.from_pydict({"value": numbers(5, 40)})

    try:
        with pytest.raises(PipelineError, match="another writer had the name"):
            first.write(rows())
    finally:
        first.close()


def test_a_writer_goes_on_after_what_was_stored_without_a_receipt(topics: Topics, exact_topic: str) -> None:
    """Another attempt at the task has stored the same batch meanwhile, as a lost receipt looks like."""
    first = TaskWriter(topics.options(exact_topic, **EXACT), Task("job", 0, 0, run="a"))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": numbers(0, 5)})
        (lane,) = first._lanes.values()
        lane.producer._connection.close()
        broken_off(topics, exact_topic, Task("job", 0, 0, run="a"), numbers(0, 20))
        yield pa.RecordBatch.from_pydict({"value": numbers(5, 40)})

    first.write(rows())
    first.close()
    assert topics.values(exact_topic) == numbers(0, 40)


def test_a_topic_is_looked_at_from_its_end_over_all_its_ledgers(
    topics: Topics, admin: Admin, exact_topic: str
) -> None:
    subscription = f"/admin/v2/{exact_topic.replace('://', '/')}/subscription/keep"
    for number in range(3):
        attempt(topics, exact_topic, Task(f"job{number}", 0, 0), numbers(0, 300 * number + 10))
        if number == 0:
            assert admin.put(subscription, {"ledgerId": -1, "entryId": -1}).status == 204
        assert admin.put(f"/admin/v2/{exact_topic.replace('://', '/')}/unload", None).status == 204
    windows = list(newest_first(topics.options(exact_topic).access, exact_topic, poll_timeout_s=10))
    producers = [entry.producer for window in windows for entry in window.entries]
    assert producers == ["job2-0"] * 61 + ["job1-0"] * 31 + ["job0-0"]
    assert note_of(windows[0].entries[0].uuid) is not None


# -- pure ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledgers", [{3: 1}, {3: 5, 4: 1}, {3: 1, 900: 77, 901: 1, 5000: 12}])
def test_the_end_of_the_ledger_before_is_found_by_halving(ledgers: dict[int, int]) -> None:
    asked = 0

    def first(ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        nonlocal asked
        asked += 1
        there = [(each, entry) for each, count in ledgers.items() for entry in range(count)]
        return min((place for place in there if place >= (ledger_id, entry_id)), default=None)

    names = sorted(ledgers)
    for number, ledger_id in enumerate(names):
        expected = (names[number - 1], ledgers[names[number - 1]]) if number else None
        assert end_before(ledger_id, first) == expected
    last = names[-1]
    assert end_before(last + 1000, first) == (last, ledgers[last])
    assert asked < 120


def window(*entries: StoredEntry, size: int = 100, newest_ms: int = 10**12) -> Window:
    return Window(list(entries), size, newest_ms)


def entry(partition: int, batch_id: int, run: str, prefix: str = "job") -> StoredEntry:
    return StoredEntry(f"{prefix}-{partition}", str(Note(bounds(batch_id)[0], 7, True, run)))


def test_a_note_is_read_as_it_was_written() -> None:
    note = Note(2**62 + 5, 2**64 - 1, False, "run-1")
    assert note_of(str(note)) == note
    assert note_of("a-chunk-7") is None


def test_how_far_is_looked() -> None:
    other, big = StoredEntry("other", ""), SEARCH_BYTES_MAX
    rerun, fifth = Task("job", 0, 0, run="b"), Task("job", 0, 5)
    # a first attempt: the tail, unless it tells of an earlier run
    assert not Search("t", Task("job", 0, 0), False).is_done(window(other))
    assert Search("t", Task("job", 0, 0), False).is_done(window(other, size=TAIL_BYTES))
    assert Search("t", rerun, False).is_done(window(entry(1, 0, "b"), size=TAIL_BYTES))
    assert not Search("t", rerun, False).is_done(window(entry(1, 0, "a"), size=TAIL_BYTES))
    # a later micro batch: up to the one before it, of any task; else it cannot be told
    assert Search("t", fifth, False).is_done(window(other, entry(1, 4, "a")))
    assert not Search("t", fifth, False).is_done(window(entry(1, 4, "a", "job-2"), size=TAIL_BYTES))
    with pytest.raises(PipelineError, match="cannot tell whether rows of producer job-0 in micro-batch 5"):
        Search("t", fifth, False).is_done(window(other, size=big))
    # micro batches of foreachBatch are jobs of their own, perhaps under names of their own
    assert Search("t", Task("job", 0, 5, in_order=False), False).is_done(window(other, size=TAIL_BYTES))
    # what the broker knows is looked for behind entries of earlier micro batches
    assert not Search("t", fifth, True).is_done(window(entry(1, 4, "a"), size=TAIL_BYTES))
    # what is older than the job is not of it
    job = Task("spark-7", 0, 0, first_run_ms=2 * 10**12, in_order=False)
    assert Search("t", job, False).is_done(window(other))
    found = Search("t", fifth, False)
    assert found.is_done(window(other, entry(0, 5, "a")))
    assert found.found == Note(bounds(5)[0], 7, True, "a")


def test_only_a_job_under_a_name_of_its_own_is_known_to_be_the_first() -> None:
    task = Task("job", 0, 0, first_run_ms=1, in_order=False)
    assert task.is_first
    assert not replace(task, attempt=1).is_first
    assert not Task("job", 0, 0).is_first
