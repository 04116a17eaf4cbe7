"""What differs between the releases of Spark's Python data source API: 4.0 to 4.3 serve, older ones cannot.

Imported before anything else of this folder, so that a Spark that is too old is refused in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from geminga.pipeline.errors import PipelineError

OLDEST: Final = (4, 0)
_ROWS: Final = 10_000
"""In a batch that is made of rows: as many as Spark puts into one."""


def version_of(text: str) -> tuple[int, int]:
    """(4, 2) of "4.2.1". Raises `PipelineError` if it is older than `OLDEST`."""
    major, minor = text.split(".")[:2]
    found = int(major), int(minor)
    if found < OLDEST:
        raise PipelineError(
            f"this is PySpark {text}, which has no data sources in Python; install 4.0 or newer, the version "
            "of your cluster: pip install 'pyspark>=4.0,<5'"
        )
    return found


VERSION: Final = version_of(pyspark.__version__)
JAVA_MIN: Final = 17
JAVA_MAX: Final = 99 if VERSION >= (4, 2) else 22
"""Hadoop 3.4, which is in Spark 4.0 and 4.1, calls what later ones refuse."""
JAVA_RANGE: Final = f"{JAVA_MIN} or newer" if VERSION >= (4, 2) else f"{JAVA_MIN} to {JAVA_MAX}"
HAS_LIMITS: Final = VERSION >= (4, 2)
"""Whether a stream is told where a micro-batch begins, and so can bound it."""
HAS_REPARTITION_BY_ID: Final = VERSION >= (4, 1)


def spark_schema(schema: pa.Schema) -> StructType:
    """Times without a zone stay without one."""
    found: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """Times are in UTC."""
    return to_arrow_schema(schema, timezone="UTC") if VERSION >= (4, 2) else to_arrow_schema(schema)


if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:  # type: ignore[no-redef]
        """Never given: Spark ends a micro-batch at the topic's end."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        def __init__(self, rows: int) -> None:
            raise AssertionError("refused when the stream was made")

    class ReadMaxBytes(ReadMaxRows):  # type: ignore[no-redef]
        pass

    class ReadMinRows(ReadMaxRows):  # type: ignore[no-redef]
        pass

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark itself ends such a query at the end that it saw first."""


if VERSION >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    def batches_of(rows: Iterator[Any], schema: Any) -> Iterator[pa.RecordBatch]:
        """What Spark hands to a stream's writer, as Arrow batches: they are."""
        return rows
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

    def batches_of(rows: Iterator[Any], schema: Any) -> Iterator[pa.RecordBatch]:
        """What Spark hands to a stream's writer, as Arrow batches: made of rows, which takes longer."""
        from pyspark.sql.conversion import LocalDataToArrowConversion

        while some := list(itertools.islice(rows, _ROWS)):
            yield from LocalDataToArrowConversion.convert(some, schema, False).to_batches()


__all__ = [
    "HAS_LIMITS",
    "HAS_REPARTITION_BY_ID",
    "JAVA_MAX",
    "JAVA_MIN",
    "JAVA_RANGE",
    "VERSION",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "batches_of",
    "spark_schema",
    "version_of",
]
