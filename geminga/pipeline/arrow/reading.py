"""`read_topic`: topics as batches of Arrow."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from geminga.pipeline.arrow.table import chosen_schema, range_batches, table_schema, values_of
from geminga.pipeline.arrow.topic_reader import TopicReader
from geminga.pipeline.errors import BadOption
from geminga.pipeline.topics.options import Options, parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.prefixed_options import OptionWithoutEffect
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.splitting import AS_WORTH, WHOLE
from geminga.pipeline.values.schemas import TopicSchema

Start = str | Mapping[str, str]
Time = int | dt.datetime | Mapping[str, int | dt.datetime]


def read_topic(
    service_url: str,
    topic: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    columns: str | Sequence[str] | None = None,
    start: Start | None = None,
    end: Start | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    raw_value: bool = False,
    options: Mapping[str, str | int | bool] | None = None,
) -> TopicReader:
    """The messages that there are now in a topic, in several, or in those that match a pattern: partition
    after partition, each in its order.

    `columns`: only these (or this one), in this order; nothing is decoded for others. None: the value's
    columns and the seven that the Spark source has. `start`, `end`: `earliest`, `latest`, or for topics and
    partitions the first and the last message, `{"orders-partition-0": "12:345:6"}` (ledger, entry, index in
    the batch). `start_time` (inclusive), `end_time` (exclusive): publish times, with a time zone or in ms
    since 1970, for all topics or for each. `raw_value`: bytes, whatever schema the topic has. `options`:
    others of the data source, such as `pulsar.client.authParams`.

    What is to be read is settled when this returns; it is read when batches are asked for, a few MiB at a
    time. Nothing is acknowledged. Close the reader (or use `with`) to end its connection before the last
    batch. Raises `PipelineError`, as the reader does; a library that takes the reader as Arrow's C stream
    raises an error of its own with the same text.
    """
    given = {name: _text(value) for name, value in (options or {}).items()}
    given["service.url"] = service_url
    given |= _topics(topic, pattern)
    given |= {"rawValue": "true"} if raw_value else {}
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if offset is not None:
            given[name] = offset if isinstance(offset, str) else json.dumps(dict(offset))
    for name, argument, time in (
        ("startingTime", "start_time", start_time),
        ("endingTime", "end_time", end_time),
    ):
        if time is not None:
            given[name] = json.dumps(_times(argument, time))
    parsed = parse_options(given)
    if parsed.acknowledges:
        raise BadOption(
            "read_topic acknowledges nothing: leave out predefinedSubscription and subscriptionPrefix, or "
            "read a stream with Spark"
        )
    if parsed.splitting != AS_WORTH:
        names = ", ".join(parsed.splitting.offsets())
        warnings.warn(
            f"{names}: no effect here, since read_topic reads in one thread",
            OptionWithoutEffect,
            stacklevel=2,
        )
    values = values_of(parsed)
    chosen = [columns] if isinstance(columns, str) else columns
    schema = table_schema(parsed, values) if chosen is None else chosen_schema(parsed, chosen, values)
    ranges = plan_batch(replace(parsed, splitting=WHOLE))
    return TopicReader(schema, _batches(parsed, values, schema, ranges))


def _batches(
    options: Options, values: TopicSchema, schema: pa.Schema, ranges: Sequence[Range]
) -> Generator[pa.RecordBatch]:
    for wanted in ranges:
        yield from range_batches(options, values, schema, wanted)


def _text(value: str | int | bool) -> str:
    """As Spark hands options over: `True` is true."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _topics(topic: str | Sequence[str] | None, pattern: str | None) -> dict[str, str]:
    if (topic is None) == (pattern is None):
        raise BadOption("read_topic needs either a topic (or several) or a pattern")
    if pattern is not None:
        return {"topicsPattern": pattern}
    assert topic is not None
    return {"topic": topic} if isinstance(topic, str) else {"topics": ",".join(topic)}


def _times(name: str, time: Time) -> int | dict[str, int]:
    if isinstance(time, Mapping):
        return {topic: _ms(name, each) for topic, each in time.items()}
    return _ms(name, time)


def _ms(name: str, time: int | dt.datetime) -> int:
    """Rounded up: what was published before the time is not after it."""
    if isinstance(time, int):
        return time
    if not isinstance(time, dt.datetime):
        raise BadOption(f"{name}: {time!r} is no time; give a datetime with a time zone, or ms since 1970")
    if time.tzinfo is None:
        raise BadOption(f"{name}: {time} has no time zone; give one, as in datetime.now(timezone.utc)")
    return -((dt.datetime(1970, 1, 1, tzinfo=dt.UTC) - time) // dt.timedelta(milliseconds=1))
