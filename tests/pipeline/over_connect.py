"""The client of a server of Spark Connect: reads, writes, streams and SQL over it, and its errors.

    python -m tests.pipeline.over_connect sc://127.0.0.1:15002 pulsar://127.0.0.1:6650 TOPIC ROWS DIRECTORY

TOPIC has the values 0 to ROWS - 1, each once under its key (value % 97). Targets are TOPIC-connect-..., and
the checkpoint is below DIRECTORY. `tests/pipeline/cluster.py` has the server. Needs
`pip install "pyspark[connect]"`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from geminga.pipeline.errors import BadOption, BrokerUnreachable, PipelineError, TopicMissing
from geminga.pipeline.spark import failure_of, register, register_namespace, ship
from geminga.pipeline.spark.export import export_topics
from tests.pipeline.each_once import assert_each_once, at, keyed

ENDED_SECONDS = 120


class Client:
    def __init__(self, spark: Any, service_url: str, topic: str, rows: int, directory: str) -> None:
        self.spark, self.service_url, self.topic, self.rows = spark, service_url, topic, rows
        self.directory = directory
        self.written, self.copy = f"{topic}-connect-written", f"{topic}-connect-copy"

    def load(self, topic: str, **more: str) -> Any:
        return self.spark.read.format("pulsar").options(**at(self.service_url, topic), **more).load()

    def read(self) -> None:
        assert_each_once(self.load(self.topic), self.rows, self.topic)

    def write(self) -> None:
        sink = (
            keyed(self.spark, self.rows).write.format("pulsar").options(**at(self.service_url, self.written))
        )
        sink.option("exactlyOnce", "true").mode("append").save()
        assert_each_once(self.load(self.written), self.rows, self.written)

    def stream(self) -> None:
        source = self.spark.readStream.format("pulsar").options(**at(self.service_url, self.topic))
        source = source.option("startingOffsets", "earliest").option("predefinedSubscription", "connect")
        source = source.option("maxRowsPerTrigger", str(self.rows // 3)).load()
        sink = source.writeStream.format("pulsar").options(**at(self.service_url, self.copy))
        sink = sink.option("exactlyOnce", "true").option("checkpointLocation", f"{self.directory}/connect")
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        assert query.exception() is None
        assert_each_once(self.load(self.copy), self.rows, self.copy)

    def sql(self) -> None:
        """A view or DataFrame keeps the plan of its first query; made again it has what came since."""
        options = f"'service.url' '{self.service_url}', 'topic' '{self.written}'"
        create = f"CREATE OR REPLACE TEMPORARY VIEW orders USING pulsar OPTIONS ({options})"
        count = "SELECT count(*) FROM orders WHERE __topic LIKE '%connect-written%'"
        self.spark.sql(create)
        assert self.spark.sql(count).first()[0] == self.rows
        frame = self.load(self.written)
        assert frame.count() == self.rows
        sink = keyed(self.spark, 10).write.format("pulsar").options(**at(self.service_url, self.written))
        sink.mode("append").save()
        assert frame.count() == self.spark.sql(count).first()[0] == self.rows
        assert self.load(self.written).count() == self.rows + 10
        self.spark.sql(create)
        assert self.spark.sql(count).first()[0] == self.rows + 10

    def errors(self) -> None:
        here = self.service_url
        frame = keyed(self.spark, 3)
        sink = frame.write.format("pulsar").options(**at(here, self.written))
        endless = self.spark.readStream.format("pulsar").options(**at(here, self.topic))
        endless = endless.option("endingTime", "1000").load().writeStream.format("noop")
        endless = endless.option("checkpointLocation", f"{self.directory}/endless").queryName("endless")
        self.raises(BadOption, "nosuch", lambda: self.load(self.topic, nosuch="1").count())
        self.raises(TopicMissing, "check the name", lambda: self.load("nope").count())
        nothing = at("pulsar://127.0.0.1:1", self.topic)
        read = self.spark.read.format("pulsar").options(**nothing)
        self.raises(BrokerUnreachable, "is service.url right", lambda: read.load().count())
        self.raises(PipelineError, "overwritten", lambda: sink.mode("overwrite").save())
        self.raises(BadOption, "compression", lambda: sink.option("compression", "x").mode("append").save())
        self.raises(BadOption, "a stream has no end", lambda: ended(endless.start()))
        for refused in (
            lambda: ship(self.spark),
            lambda: register_namespace(self.spark, "public/default", {"service.url": here}),
            lambda: export_topics(self.spark, f"{self.directory}/refused", at(here, self.topic)),
        ):
            self.raises(PipelineError, "Spark Connect", refused)

    def raises(self, kind: type[PipelineError], words: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except (PySparkException, PipelineError) as error:
            found = error if isinstance(error, PipelineError) else failure_of(error)
            assert isinstance(found, kind), repr(found)
            assert words in str(found), str(found)
            assert "\n" not in str(found), str(found)
        else:
            raise AssertionError(f"no error, {kind.__name__} was expected: {words}")


def ended(query: Any) -> None:
    """Returns once it has ended, and raises its error. One that goes on is stopped."""
    if not query.awaitTermination(ENDED_SECONDS):
        told = query.status
        query.stop()
        raise AssertionError(f"a query goes on after {ENDED_SECONDS} s: {told}")


def main() -> None:
    remote, service_url, topic, rows, directory = sys.argv[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark = register(SparkSession.builder.remote(remote).getOrCreate())
    client = Client(spark, service_url, topic, int(rows), directory)
    for step in (client.read, client.write, client.stream, client.sql, client.errors):
        begun = time.monotonic()
        step()
        print(f"  {step.__name__} over Connect: {time.monotonic() - begun:.0f} s", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
