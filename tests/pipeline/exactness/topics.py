"""What the exactness command reads: numbered messages of every kind, and the check that each came once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from geminga.pipeline.client.producing import Producer
from geminga.pipeline.columns.encoding import send_frame
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin

NAMESPACE = "persistent://public/default"
CODECS = ("none", "lz4", "zlib", "zstd", "snappy")
PARTITIONS = 4
FILL_ROWS = 50_000
CHUNK_BYTES = 400
CHUNKED_SHARE = 1000
POSITION = ("__ledgerId", "__entryId", "__batchIndex")
PADDING = "x" * 80
CONTENT = "concat(cast(id as string), '|', repeat('x', cast(id % 80 as int)))"
"""What a value must be, in SQL; `value_of` says the same."""


def value_of(number: int) -> bytes:
    return b"%d|%s" % (number, PADDING[: number % 80].encode())


def fill(service_url: str, admin: Admin, messages: int) -> list[str]:
    """All topics with numbers [0, messages), each once."""
    topics = []
    chunked = messages // CHUNKED_SHARE
    each = (messages - chunked) // len(CODECS)
    begin = chunked
    for codec in CODECS:
        topic = f"{NAMESPACE}/exact-{codec}"
        admin.create_partitions(topic, PARTITIONS)
        end = messages if codec == CODECS[-1] else begin + each
        options = parse_options({"service.url": service_url, "topic": topic, "compression": codec})
        writer = TaskWriter(options, Task("fill", 0, 0))
        try:
            writer.write(_batches(begin, end))
        finally:
            writer.close()
        topics.append(topic)
        begin = end
    topics.append(f"{NAMESPACE}/exact-chunked")
    _fill_chunked(service_url, topics[-1], chunked)
    return topics


def _batches(begin: int, end: int) -> Iterator[pa.RecordBatch]:
    for at in range(begin, end, FILL_ROWS):
        numbers = range(at, min(at + FILL_ROWS, end))
        yield pa.RecordBatch.from_pydict(
            {
                "value": pa.array([value_of(number) for number in numbers], pa.binary()),
                "__key": [str(number % 997) for number in numbers],
            }
        )


def _fill_chunked(service_url: str, topic: str, messages: int) -> None:
    """Each message in chunks, those of two messages interleaved."""
    producer = Producer(
        parse_options({"service.url": service_url}).access, topic, None, pending_max=1000, send_timeout_s=30
    )
    sequence_id = 0
    for number in range(0, messages, 2):
        parts = []
        for one in range(number, min(number + 2, messages)):
            value = value_of(one) + b"#" * 1000
            pieces = [value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
            parts.append([(one, index, len(pieces), len(value), piece) for index, piece in enumerate(pieces)])
        for chunk in sorted((chunk for message in parts for chunk in message), key=lambda c: c[1]):
            one, index, count, size, piece = chunk
            assert producer.name is not None
            metadata = pb.MessageMetadata(
                producer_name=producer.name,
                sequence_id=sequence_id,
                publish_time=time.time_ns() // 1_000_000,
                uuid=f"m{one}",
                chunk_id=index,
                num_chunks_from_msg=count,
                total_chunk_msg_size=size,
            )
            producer.send(sequence_id, send_frame(1, metadata, piece, pb.NONE))
            sequence_id += 1
    producer.flush()
    producer.close()


def numbered(frame: Any) -> Any:
    """Columns id and v (without the padding of chunked messages) of a DataFrame with a column `value`; what
    else it has stays.
    """
    others = [name for name in frame.columns if name != "value"]
    return frame.selectExpr("cast(value as string) v", *others).selectExpr(
        "cast(split_part(v, '|', 1) as bigint) id", "trim(TRAILING '#' FROM v) v", *others
    )


def check(frame: Any, messages: int, step: str) -> None:
    """Count, distinct, and content of a DataFrame with a column `value`."""
    rows = numbered(frame)
    found = rows.selectExpr(
        "count(*) n", "count(distinct id) d", "min(id) a", "max(id) b", f"count_if(v = {CONTENT}) good"
    ).first()
    expected = (messages, messages, 0, messages - 1, messages)
    if tuple(found) != expected:
        rows.createOrReplaceTempView("exactness_rows")
        wrong = frame.sparkSession.sql(
            "select * from exactness_rows where id in "
            "(select id from exactness_rows group by id having count(*) > 1) order by id limit 20"
        )
        for row in wrong.collect():
            print(f"  more than once: {row}", flush=True)
        raise AssertionError(f"{step}: {found} instead of {expected}")
    print(f"{step}: {messages} messages, each once, every content as it was", flush=True)
