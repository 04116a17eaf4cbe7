"""Runs the kernels on Spark: data source, jobs, session. Only these modules import pyspark.

`make_session` finds a Java and registers the data source `pulsar`. `PulsarSource` (`source.py`) returns the
batch reader, `StreamReader` (`stream.py`) and the writers (`sink.py`) to Spark, which call `pipeline/topics`.
`scans/` separates the scans of a table and passes them their filters, `catalog.py` makes tables of a
namespace. Jobs (`audit.py`, `export.py`, `replay.py`, `buckets.py`, `rescue.py`, `capacity.py`) send
descriptions to workers with `each` (`pieces.py`), and each worker reads the data that its description names.
Read `session.py` and `source.py` first, then `pieces.py`.

Spark gets descriptions rather than data wherever that avoids a shuffle: the bitmap of a ledger's positions is
small, its events are not. Arithmetic stays in the kernels, so that a job has the same result with Spark and
without.

Must not be broken: our errors leave a worker as they were raised (`failures.py`), without pages of Java
traces; invalid requests are refused before a job starts; workers have this package and its imports: those of
this machine by the environment, those of a cluster by an archive (`archive.py`). Only `api.py` knows the
differences between releases of Spark; it is imported first and refuses releases that are too old. The import
below is for users (`from geminga.pipeline.spark import make_session`); it imports pyspark, so modules outside
this folder import from here inside functions only.
"""

from geminga.pipeline.columns.allocation import freeze_imports
from geminga.pipeline.spark.api import VERSION  # before the others: refuses a Spark that is too old
from geminga.pipeline.spark.catalog import register_namespace
from geminga.pipeline.spark.failures import failure_of
from geminga.pipeline.spark.lag_log import LagLog
from geminga.pipeline.spark.session import INSTALLED, make_session, register, ship

__all__ = [
    "INSTALLED",
    "VERSION",
    "LagLog",
    "failure_of",
    "make_session",
    "register",
    "register_namespace",
    "ship",
]

freeze_imports("import")  # here, as each worker imports this for what it is sent, and so nearly all the rest
