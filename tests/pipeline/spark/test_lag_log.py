"""What the log says of streams: how far they are behind after each trigger, and why one ended."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geminga.pipeline.spark import LagLog, failure_of
from geminga.pipeline.values.avro_shapes import BadValue
from tests.e2e.waiting import eventually
from tests.pipeline.conftest import Topics

PAGE = Path(__file__).parents[3] / "docs" / "pipeline.md"


def test_each_trigger_says_how_far_it_is_behind(
    spark: Any, topics: Topics, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "geminga.pipeline")
    topics.write(topic, {"value": list(range(20))}, batchRows="1")
    topics.write(topic, {"value": [b"x"]}, valueSchema="none")
    options = {"service.url": topics.endpoints.service_url, "topic": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("pulsar").options(**options, maxRowsPerTrigger="10").load()
    writing = stream.writeStream.format("noop").queryName("lagging").trigger(availableNow=True)
    listener = LagLog()
    spark.streams.addListener(listener)
    try:
        query = writing.option("checkpointLocation", str(tmp_path)).start()
        eventually(lambda: "has ended" in caplog.text, what="the bad value ends the query")
        error = query.exception()
        assert isinstance(failure_of(error), BadValue)
        assert str(error).count('  File "') == 1
    finally:
        spark.streams.removeListener(listener)
    found = [record.getMessage() for record in caplog.records if record.name == "geminga.pipeline"]
    age = r" \(the oldest is [\d.]+ s old\)"
    assert re.fullmatch(rf"lagging, micro-batch 0: 11 rows behind{age}, {topic} 11", found[0])
    assert re.fullmatch(rf"lagging, micro-batch 1: 1 rows behind{age}, {topic} 1", found[1])
    assert found[2].startswith(f"lagging has ended: {topic}: the value of message ")
    assert len(found) == 3


def test_the_log_of_the_page_has_no_lines_of_py4j() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = (each for each in blocks if "LagLog()" in each)
    session = (
        "from types import SimpleNamespace as N\nspark = N(streams=N(addListener=lambda listener: None))\n"
    )
    lines = "".join(
        f"logging.getLogger({name!r}).info('of ' + {name!r})\n"
        for name in ("geminga.pipeline", "py4j.clientserver")
    )
    ran = subprocess.run(
        [sys.executable, "-c", session + block + lines], capture_output=True, text=True, check=True
    )
    assert ran.stderr == "of geminga.pipeline\n"
