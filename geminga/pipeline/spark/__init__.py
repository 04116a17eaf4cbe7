"""Spark around the kernels: data source, jobs, session. Only these modules import pyspark.

`make_session` finds a Java and registers the data source `pulsar`; `PulsarSource` (`source.py`) gives Spark
the batch reader, `StreamReader` (`stream.py`) and the writers (`sink.py`), which call `pipeline/topics`.
`scans/` keeps the scans of a table apart and tells them the filters, `catalog.py` makes
tables of a namespace. Jobs (`audit.py`, `export.py`, `replay.py`, `buckets.py`, `rescue.py`, `capacity.py`)
send descriptions to workers by `each` (`pieces.py`), and each worker reads what its description names. Read
`session.py` and `source.py` first, then `pieces.py`.

Spark is given descriptions rather than data wherever a shuffle can be avoided: a position bitmap of a ledger
is small, its events are not. Arithmetic stays in the kernels, so that a job gives the same with Spark and
without.

Must not be broken: errors of ours come out of a worker as they were raised (`failures.py`), without pages of
Java; what can be refused is refused before a job starts; workers get this package and what it imports: those
of this machine by the environment, those of a cluster by an archive (`archive.py`). Releases of Spark differ
in `api.py` alone, which is imported first and refuses those that are too old. The import
below is for users (`from geminga.pipeline.spark import make_session`); it pulls in pyspark, so modules
outside of this folder import from here inside functions only.
"""

from geminga.pipeline.columns.allocation import freeze_imports
from geminga.pipeline.spark.api import VERSION  # before the others: refuses a Spark that is too old
from geminga.pipeline.spark.catalog import register_namespace
from geminga.pipeline.spark.session import INSTALLED, make_session, register, ship

__all__ = ["INSTALLED", "VERSION", "make_session", "register", "register_namespace", "ship"]

freeze_imports()  # here, as each worker imports this for what it is sent, and it imports nearly all the rest
