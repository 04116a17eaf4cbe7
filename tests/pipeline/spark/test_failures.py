"""What users see of an error of ours that comes through Spark, and what they can make of it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from geminga.pipeline.errors import BrokerUnreachable, PipelineError
from geminga.pipeline.spark import failure_of
from geminga.pipeline.values.avro_shapes import BadValue
from geminga.pipeline.values.avro_writing import BadColumns
from tests.pipeline.conftest import Topics

LINES_MAX = 8
"""Of Spark's text: its own line, a traceback of one frame, our line, and what Spark puts behind."""


def failed(action: Any) -> tuple[PySparkException, PipelineError]:
    with pytest.raises(PySparkException) as raised:
        action()
    found = failure_of(raised.value)
    assert isinstance(found, PipelineError)
    return raised.value, found


def one_frame(error: PySparkException) -> bool:
    return str(error).count('  File "') == 1


def test_a_bad_value_comes_in_words(spark: Any, topics: Topics, topic: str) -> None:
    options = {"service.url": topics.endpoints.service_url, "topic": topic, "startingOffsets": "earliest"}
    topics.write(topic, {"value": [5]})
    topics.write(topic, {"value": [b"x"]}, valueSchema="none")
    error, found = failed(spark.read.format("pulsar").options(**options).load().collect)
    assert isinstance(found, BadValue)
    assert str(found).startswith(f"{topic}: the value of message ")
    assert str(found).endswith("rawValue=true to get bytes")
    assert one_frame(error)
    assert len(str(error).splitlines()) <= LINES_MAX


def test_a_value_that_does_not_fit_comes_in_words(spark: Any, topics: Topics, topic: str) -> None:
    options = {"service.url": topics.endpoints.service_url, "topic": topic, "valueSchema": "int8"}
    rows = spark.sql("select 300 as size")
    error, found = failed(rows.write.format("pulsar").options(**options).mode("append").save)
    assert isinstance(found, BadColumns)
    assert str(found) == "column 'size' has 300, and INT8 is from -128 to 127"
    assert one_frame(error)


def test_an_error_of_the_driver_comes_in_words(spark: Any) -> None:
    options = {"service.url": "pulsar://127.0.0.1:1", "topic": "orders"}
    error, found = failed(spark.read.format("pulsar").options(**options).load)
    assert isinstance(found, BrokerUnreachable)
    assert str(found).startswith("no broker answers at pulsar://127.0.0.1:1 (")
    assert str(found).endswith("is service.url right?")
    assert one_frame(error)
