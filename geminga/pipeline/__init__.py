"""Pulsar topics as DataFrames, delivery audits, and bulk work on the delayed index, on Spark through PySpark.

Two layers. Kernels (numpy, pyarrow, pyroaring) never import Spark and hold all arithmetic: `columns` and
`values` make Arrow columns of entries and payloads, `client` and `topics` read and write topics, `export`,
`audit` and `buckets` are jobs over them. The modules of `geminga.pipeline.spark` put Spark around the
kernels. Read `read_range` in `topics/rows.py` first: frames, entries, payloads, batches and columns are what
it calls.

The split lets every kernel be tested in one process, lets `geminga pipeline` work without Spark, and keeps
the step for a single message out of Python: a field of all messages is read at once. Options are those of the
JVM connector (streamnative/pulsar-spark), so that a job can change sides.

Needs the extra `geminga[spark]`. Works against Geminga and any other Pulsar broker alike; what reads files
needs no broker at all. Must not be broken: the broker never imports this package; descriptions of work travel
to workers, not data. docs/pipeline.md is the page for users. `read_topic` is the door for programs without
Spark; it is imported when it is asked for, as most modules here need no broker.
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
