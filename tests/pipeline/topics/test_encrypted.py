"""Encrypted messages: the official client decrypts them; all columns are there, wherever a range is cut."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pulsar.schema
import pyarrow as pa
import pytest

from geminga.pipeline.columns.columns import ColumnMaker, column_names
from geminga.pipeline.errors import BadOption, PipelineError
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.topics.streaming import StreamPlan
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.schemas import schema_of, value_fields
from tests.pipeline.conftest import POLL_TIMEOUT_S, Topics, triggers


class Keys:
    """A pair of PEM files, and a producer that encrypts with them."""

    def __init__(self, directory: Path) -> None:
        self.private, self.public = directory / "private.pem", directory / "public.pem"
        for command in (
            ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self.private)],
            ["rsa", "-in", str(self.private), "-pubout", "-out", str(self.public)],
        ):
            subprocess.run(["openssl", *command], check=True, capture_output=True)

    @property
    def options(self) -> dict[str, str]:
        return {
            "pulsar.reader.privateKeyPath": str(self.private),
            "pulsar.reader.publicKeyPath": str(self.public),
        }

    def producer(self, client: pulsar.Client, topic: str, **options: Any) -> Any:
        reader = pulsar.CryptoKeyReader(str(self.public), str(self.private))
        return client.create_producer(topic, encryption_key="k", crypto_key_reader=reader, **options)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def read(topics: Topics, topic: str, keys: Keys, wanted: Iterator[Any] | list[Any]) -> list[bytes]:
    options = topics.options(topic, **keys.options)
    maker = ColumnMaker(topic, pa.schema([("value", pa.binary())]))
    return [
        value
        for each in wanted
        for batch in read_range(options.access, each, maker, poll_timeout_s=POLL_TIMEOUT_S)
        for value in batch.column(0).to_pylist()
    ]


def test_all_columns_are_there(client: pulsar.Client, topics: Topics, topic: str, keys: Keys) -> None:
    plain = client.create_producer(topic, producer_name="plain")
    for _ in range(3):
        plain.send(b"plain")
    settings = {"batching_enabled": True, "batching_max_messages": 4, "initial_sequence_id": 99}
    lz4 = pulsar.CompressionType.LZ4
    producer = keys.producer(client, topic, producer_name="secret", compression_type=lz4, **settings)
    for index in range(10):
        producer.send_async(b"%d" % index, lambda *_: None, partition_key=f"k{index}",
                            properties={"n": str(index)}, event_timestamp=1000 + index,
                            ordering_key=f"o{index}")  # fmt: skip
    producer.flush()
    with pytest.raises(PipelineError, match="privateKeyPath"):
        topics.read(topic)
    names = ("__sequenceId", "__producerName", "__orderingKey", "__batchIndex", "__entryId")
    rows = topics.read(topic, *names, **keys.options)
    assert [row["value"] for row in rows] == [b"plain"] * 3 + [b"%d" % index for index in range(10)]
    assert len({row["__messageId"] for row in rows}) == 13
    assert [row["__producerName"] for row in rows] == ["plain"] * 3 + ["secret"] * 10
    assert [row["__sequenceId"] for row in rows[3:]] == [100 + index for index in range(10)]
    for index, row in enumerate(rows[3:]):
        assert (row["__key"], row["__orderingKey"]) == (b"k%d" % index, b"o%d" % index)
        assert dict(row["__messageProperties"]) == {"n": str(index)}
        assert row["__eventTime"].timestamp() == (1000 + index) / 1000
    assert [row["__batchIndex"] for row in rows[3:7]] == [0, 1, 2, 3]


def test_ranges_and_triggers_cut_anywhere_add_up(
    client: pulsar.Client, topics: Topics, topic: str, keys: Keys
) -> None:
    producer = keys.producer(client, topic, batching_enabled=True, batching_max_messages=7)
    values = [b"%d" % index for index in range(100)]
    for value in values:
        producer.send_async(value, lambda *_: None)
    producer.flush()
    for splits in ("1", "4"):
        assert (
            read(topics, topic, keys, plan_batch(topics.options(topic, splitsPerPartition=splits))) == values
        )
    plan = StreamPlan(
        topics.options(topic, startingOffsets="earliest", maxRowsPerTrigger="33", exactRowsPerTrigger="true")
    )
    try:
        found = [read(topics, topic, keys, ranges) for ranges in triggers(plan, plan.initial())]
    finally:
        plan.close()
    assert [len(each) for each in found] == [33, 33, 33, 1]
    assert [value for each in found for value in each] == values


def test_chunked_and_encrypted(client: pulsar.Client, topics: Topics, topic: str, keys: Keys) -> None:
    producer = keys.producer(client, topic, batching_enabled=False, chunking_enabled=True)
    big = random.Random(3).randbytes(5_300_000)
    for value in (b"before", big, b"after"):
        producer.send(value)
    (whole,) = plan_batch(topics.options(topic, splitsPerPartition="1"))
    assert read(topics, topic, keys, [whole]) == [b"before", big, b"after"]
    entries = plan_batch(topics.options(topic, splitsPerPartition="4"))  # one begins with the second chunk
    assert len(entries) == 4
    assert read(topics, topic, keys, entries) == [b"before", big, b"after"]


def test_values_of_a_schema(client: pulsar.Client, topics: Topics, topic: str, keys: Keys) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]
        number = pulsar.schema.Integer()

    producer = keys.producer(client, topic, schema=pulsar.schema.AvroSchema(Order))
    for number in range(3):
        producer.send(Order(number=number))
    options = topics.options(topic, columns="__schemaVersion", **keys.options)
    values = schema_of(options.access, [topic])
    columns = pa.schema(list((value_fields(values) | column_names(options.more_columns)).items()))
    maker = ColumnMaker(topic, columns, ValueDecoder(options.access, topic, values, columns))
    rows = [
        row
        for wanted in plan_batch(options)
        for batch in read_range(options.access, wanted, maker, poll_timeout_s=POLL_TIMEOUT_S)
        for row in batch.to_pylist()
    ]
    assert [row["number"] for row in rows] == [0, 1, 2]
    assert {len(row["__schemaVersion"]) for row in rows} == {8}


FLAGS = ("__undecrypted", "__batchIndex", "__entryId")
CONSUME = {"pulsar.reader.cryptoFailureAction": "CONSUME"}


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_what_another_key_opens_is_never_left_out(
    client: pulsar.Client, topics: Topics, topic: str, keys: Keys, tmp_path: Path, batched: bool
) -> None:
    """Keys were changed, and messages in plain lie between."""
    old = Keys(tmp_path)
    settings = {"batching_enabled": batched, "batching_max_messages": 5}
    for made, text in ((old, b"old"), (None, b"plain"), (keys, b"new"), (old, b"old")):
        producer = made.producer(client, topic, **settings) if made else client.create_producer(topic)
        for _ in range(10):
            producer.send_async(text, lambda *_: None, partition_key="k", properties={"p": "1"})
        producer.flush()
        producer.close()
    with pytest.raises(PipelineError, match=r"does not open entry \d+:0: .*cryptoFailureAction=CONSUME"):
        topics.read(topic, **keys.options)
    rows = topics.read(topic, *FLAGS, **keys.options, **CONSUME)
    values = [None] * 10 + [b"plain"] * 10 + [b"new"] * 10 + [None] * 10
    assert [row["value"] for row in rows] == values
    assert [row["__undecrypted"] for row in rows] == [value is None for value in values]
    assert len({row["__messageId"] for row in rows}) == 40
    if batched:
        assert [row["__batchIndex"] for row in rows[:10]] == [*range(5), *range(5)]
    else:
        assert {row["__key"] for row in rows} == {b"k"}, "the metadata of an entry are in plain"
    for splits in ("1", "4"):
        wanted = plan_batch(topics.options(topic, splitsPerPartition=splits))
        access = topics.options(topic, **keys.options, **CONSUME).access
        maker = ColumnMaker(topic, pa.schema([("value", pa.binary())]))
        batches = [read_range(access, each, maker, poll_timeout_s=POLL_TIMEOUT_S) for each in wanted]
        assert [value for found in batches for one in found for value in one.column(0).to_pylist()] == values


def test_nothing_is_read_without_a_key_where_that_is_wanted(
    client: pulsar.Client, topics: Topics, topic: str, keys: Keys
) -> None:
    client.create_producer(topic).send(b"plain")
    keys.producer(client, topic).send(b"secret")
    rows = topics.read(topic, "__undecrypted", **CONSUME)
    assert [(row["value"], row["__undecrypted"]) for row in rows] == [(b"plain", False), (None, True)]
    gone = {name: path + ".gone" for name, path in keys.options.items()}
    with pytest.raises(PipelineError, match=r"private\.pem\.gone cannot be read on this machine"):
        topics.read(topic, **gone)
    with pytest.raises(BadOption, match="expected FAIL, or CONSUME"):
        topics.options(topic, **{"pulsar.reader.cryptoFailureAction": "DISCARD"})


def test_chunks_that_no_key_opens(
    client: pulsar.Client, topics: Topics, topic: str, keys: Keys, tmp_path: Path
) -> None:
    producer = Keys(tmp_path).producer(client, topic, batching_enabled=False, chunking_enabled=True)
    for value in (b"before", random.Random(3).randbytes(11_000_000), b"after"):
        producer.send(value)
    rows = topics.read(topic, *FLAGS, **keys.options, **CONSUME)
    assert [(row["value"], row["__undecrypted"]) for row in rows] == [(None, True)] * 3


def test_the_wrong_key_is_told(
    client: pulsar.Client, topics: Topics, topic: str, keys: Keys, tmp_path: Path
) -> None:
    keys.producer(client, topic).send(b"secret")
    other = Keys(tmp_path)
    (wanted,) = plan_batch(topics.options(topic))
    maker = ColumnMaker(topic, pa.schema([("value", pa.binary())]))
    access = topics.options(topic, **other.options).access
    with pytest.raises(PipelineError, match="does not open entry"):
        list(read_range(access, wanted, maker, poll_timeout_s=2))
