"""What a task that writes holds in memory is bounded in bytes, whatever the size of its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from geminga.limits import KIB, MIB
from geminga.pipeline.client.producing import PendingBytes, Producer
from geminga.pipeline.errors import BadOption
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin
from tests.pipeline.conftest import Topics

ROWS, ROW_BYTES, ARROW_ROWS = 96, MIB, 2
LIMIT = 16 * MIB
PEAK_BYTES_MAX = LIMIT + 12 * MIB
"""By which the process may grow: the limit, the batch in hand, and copies of the entry that is made."""
KEEPS_LITTLE = {"MALLOC_MMAP_THRESHOLD_": str(128 * KIB)}
"""By default the C library keeps up to 8 MiB of what was freed, now and then."""


def large_rows(rows: int, row_bytes: int = ROW_BYTES) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows, ARROW_ROWS):
        numbers = range(at, min(at + ARROW_ROWS, rows))
        values = [b"%010d" % number + bytes(row_bytes - 10) for number in numbers]
        yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()),
                                          "__key": [str(number) for number in numbers]})  # fmt: skip


def resident_bytes(name: str) -> int:
    """`VmRSS` or `VmHWM`, its peak."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) * 1024


def written_peak(service_url: str, topic: str) -> int:
    """By how much the process grows while it writes. Run in a process of its own."""
    given = {"service.url": service_url, "topic": topic, "memoryLimitBytes": str(LIMIT)}
    writer = TaskWriter(parse_options(given), Task("memory", 0, 0))
    writer.write(large_rows(ARROW_ROWS, row_bytes=1000))  # what is loaded once
    before = resident_bytes("VmRSS")
    try:
        assert writer.write(large_rows(ROWS)).rows == ROWS + ARROW_ROWS
    finally:
        writer.close()
    return resident_bytes("VmHWM") - before


@pytest.mark.parametrize("partitions", [1, 40])
def test_large_values_stay_within_the_memory_limit(
    topics: Topics, admin: Admin, topic: str, partitions: int
) -> None:
    """96 MiB: in one lane, whose batches are not full for a long time, and in forty."""
    if partitions > 1:
        admin.create_partitions(topic, partitions)
    code = f"from {__name__} import *; print(written_peak({topics.endpoints.service_url!r}, {topic!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | KEEPS_LITTLE
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < PEAK_BYTES_MAX, f"{int(done.stdout) // MIB} MiB"


def test_entries_depend_on_the_rows_alone_where_the_limit_cuts_them(
    topics: Topics, admin: Admin, topic: str
) -> None:
    """As a task that runs again needs it: its Arrow batches may be others."""
    sizes = [10_000 + 37_000 * (row % 11) for row in range(120)]
    rows = pa.RecordBatch.from_pydict(
        {"value": [b"%03d" % row + bytes(size) for row, size in enumerate(sizes)],
         "__key": [str(row % 17) for row in range(len(sizes))]}
    )  # fmt: skip
    found = []
    for arrow_rows in (120, 50, 7):
        copy = f"{topic}-{arrow_rows}"
        admin.create_partitions(copy, 3)
        writer = TaskWriter(topics.options(copy, memoryLimitBytes=str(2 * MIB)), Task("test", 0, 0))
        written = writer.write(rows.slice(at, arrow_rows) for at in range(0, len(rows), arrow_rows))
        writer.close()
        assert written.rows == len(rows)
        read = topics.read(copy, "__entryId", "__batchIndex")
        part = {row["value"][:3]: row["__topic"][-1] for row in read}
        found.append(sorted((row["value"][:3], part[row["value"][:3]], row["__entryId"], row["__batchIndex"])
                            for row in read))  # fmt: skip
    assert found[0] == found[1] == found[2]
    assert len({(part, entry) for _, part, entry, _ in found[0]}) > 20, "the limit cuts nothing here"


class Sent(Producer):
    """Frames that are confirmed when somebody waits for them."""

    def __init__(self, pending: PendingBytes) -> None:
        self._own, self._pending_of_all = 0, pending

    def take(self, size_bytes: int) -> None:
        self._pending_of_all.make_room(size_bytes)
        self._pending_of_all.add(self, size_bytes)
        self._own += size_bytes

    def await_receipts(self, bytes_max: int) -> None:
        confirmed = max(self._own - bytes_max, 0)
        self._pending_of_all.add(self, -confirmed)
        self._own -= confirmed


def test_producers_share_their_bound_and_the_one_with_the_most_waits() -> None:
    pending = PendingBytes(100)
    large, small = Sent(pending), Sent(pending)
    large.take(70)
    small.take(30)
    assert (pending.of(large), pending.of(small)) == (70, 30)
    small.take(20)
    assert (pending.of(large), pending.of(small)) == (35, 50)
    large.take(500)
    assert (pending.of(large), pending.of(small)) == (500, 0), "what is larger than all goes alone"
    pending.leave_out(large)
    small.take(100)
    assert (pending.of(large), pending.of(small)) == (0, 100)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 64 * MIB),
        ({"memoryLimitBytes": "1048576"}, MIB),
        ({"pulsar.client.memoryLimitBytes": "33554432"}, 32 * MIB),
        ({"pulsar.client.memoryLimitBytes": "0"}, 64 * MIB),
        ({"pulsar.client.memoryLimitBytes": "33554432", "memorylimitbytes": "16777216"}, 16 * MIB),
    ],
)
def test_the_limit_may_be_that_of_the_java_client(given: dict[str, str], expected: int) -> None:
    options = {"service.url": "pulsar://localhost:6650", **given}
    assert parse_options(options).memory_limit_bytes == expected


def test_a_limit_below_a_mebibyte_is_refused() -> None:
    with pytest.raises(BadOption, match="memoryLimitBytes.*at least 1048576"):
        parse_options({"service.url": "pulsar://localhost:6650", "memoryLimitBytes": "1000"})
