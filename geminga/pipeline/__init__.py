"""Pulsar topics as DataFrames, delivery audits, and bulk work on the delayed index, on Spark through PySpark.

There are two layers. Kernels (numpy, pyarrow, pyroaring) never import Spark and do all arithmetic: `columns`
and `values` make Arrow columns of entries and payloads, `client` and `topics` read topics, `writing` writes
them, and `export`, `audit` and `buckets` are jobs on top. The modules of `geminga.pipeline.spark` run the
kernels on Spark. Read `read_range` in `topics/rows.py` first; it calls the kernels in order: frames, entries,
payloads, batches, columns.

Because of this split every kernel can be tested in one process, and `geminga pipeline` works without Spark.
No Python code runs per message: a field is read for all messages at once. Options are those of the JVM
connector (streamnative/pulsar-spark), so that a job can move from one to the other.

Needs the extra `geminga[spark]`. Works with Geminga and any other Pulsar broker; jobs on files need none.
Must not be broken: the broker never imports this package; the driver sends descriptions of work to workers,
not data. docs/pipeline.md is the page for users. `read_topic` is the entry point for programs without Spark;
it is imported on first access, since most modules here need no broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geminga.pipeline.arrow.reading import read_topic

__all__ = ["read_topic"]


def __getattr__(name: str) -> Any:
    if name != "read_topic":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from geminga.pipeline.arrow.reading import read_topic

    return read_topic
