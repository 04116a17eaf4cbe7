"""What is refused over Spark Connect, in words that say what to do. `tests/pipeline/cluster.py` has a server;
its client needs packages that these tests do without, so a session here only answers as that of Connect does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from geminga.pipeline.buckets.capacity import Plan
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark import make_session, register, register_namespace, ship
from geminga.pipeline.spark.capacity import capacity
from geminga.pipeline.spark.export import export_topics
from geminga.pipeline.spark.pieces import collect_each


class OverConnect:
    """As `pyspark.sql.connect.session.SparkSession`: what a JVM would be needed for is an error."""

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.dataSource = self

    def register(self, source: Any) -> None:
        self.registered.append(source)

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name}
        )


JOBS: dict[str, Callable[[Any], object]] = {
    "export": lambda spark: export_topics(spark, "s3a://bucket/a", {}),
    "capacity": lambda spark: capacity(spark, [Plan(100_000, 1.0, 10)]),
    "pieces": lambda spark: collect_each(spark, [1], lambda number, item: item),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_says_that_it_needs_a_session_of_its_own(job: str) -> None:
    with pytest.raises(
        PipelineError, match="of Spark Connect, .* give it a session of make_session"
    ) as raised:
        JOBS[job](OverConnect())
    assert "\n" not in str(raised.value)


def test_ship_says_how_the_workers_of_a_server_get_the_package() -> None:
    with pytest.raises(
        PipelineError, match=r"of Spark Connect, .*--archives FILE#geminga-workers .*=\./geminga-workers:"
    ):
        ship(OverConnect())  # type: ignore[arg-type]


def test_make_session_names_the_call_for_a_server() -> None:
    with pytest.raises(PipelineError, match=r'builder\.remote\("sc://host:15002"\)'):
        make_session(master="sc://host:15002")


def test_tables_of_a_namespace_are_refused_before_anything_is_made() -> None:
    with pytest.raises(PipelineError, match="CREATE TEMPORARY VIEW"):
        register_namespace(OverConnect(), "public/default", {})  # type: ignore[arg-type]


def test_registering_warns_of_what_spark_does_not_do_there() -> None:
    spark: Any = OverConnect()
    with pytest.warns(RuntimeWarning, match="a view or DataFrame keeps .* CREATE TABLE lose their options"):
        assert register(spark) is spark
    assert [source.name() for source in spark.registered] == ["pulsar"]
