"""The topics of a namespace as tables of Spark's catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

from geminga.pipeline.client.topics import full_name
from geminga.pipeline.errors import BadOption, PipelineError
from geminga.pipeline.spark.pieces import raised
from geminga.pipeline.spark.session import check_classic
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import topics_of

_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z_]")


def register_namespace(
    spark: SparkSession, namespace: str, options: Mapping[str, str], *, database: str | None = None
) -> dict[str, str]:
    """Make a table for each topic of `tenant/namespace`; returns the topic's full name for each table.

    Spark has no catalogs in Python, so the tables are in its session catalog: in `database`, by default
    `tenant_namespace`, which is created. What Spark allows in no name becomes `_`. A table keeps its columns;
    call this again to have new topics and new schemas, and tables of topics that are gone dropped. Other
    tables of the database stay. `options` are those of reading and writing (`service.url` at least).

    Raises `PipelineError`: two topics of one name, or a table of that name that is no topic's; Spark Connect.
    """
    check_classic(
        spark,
        "Spark loses the options of a table; make a view of each topic: CREATE TEMPORARY VIEW ... USING "
        "pulsar OPTIONS (...)",
    )
    tenant, _, local = namespace.partition("/")
    if not tenant or not local or "/" in local:
        raise BadOption(f"namespace {namespace!r}: expected tenant/namespace, such as public/default")
    topics = topics_of(parse_options({**options, "topicsPattern": f"{namespace}/.*"}))
    database = database or _name(namespace)
    tables: dict[str, str] = {}
    for topic in topics:
        table = _name(full_name(topic).local).lower()
        if table in tables:
            raise PipelineError(
                f"topics {tables[table]} and {topic} would both be table {table}; make tables of your own "
                "with CREATE TABLE ... USING pulsar"
            )
        tables[table] = topic
    raised(lambda: _replace(spark, database, tables, options))
    return {f"{database}.{table}": topic for table, topic in tables.items()}


def _replace(
    spark: SparkSession, database: str, tables: Mapping[str, str], options: Mapping[str, str]
) -> None:
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    for known in spark.catalog.listTables(database):
        if known.isTemporary:
            continue
        name = f"{_quoted(database)}.{_quoted(known.name)}"
        if _is_topic(spark, name):
            spark.sql(f"DROP TABLE {name}")
        elif known.name in tables:
            raise PipelineError(f"{name} exists and is not the table of a topic; name another database")
    for table, topic in tables.items():
        given = {**options, "topic": topic}
        listed = ", ".join(f"{_text(name)} {_text(value)}" for name, value in given.items())
        spark.sql(
            f"CREATE TABLE {_quoted(database)}.{_quoted(table)} USING pulsar OPTIONS ({listed}) "
            f"COMMENT {_text(topic)}"
        )


def _is_topic(spark: SparkSession, table: str) -> bool:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    return any(row.col_name == "Provider" and row.data_type.lower() == "pulsar" for row in rows)


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
