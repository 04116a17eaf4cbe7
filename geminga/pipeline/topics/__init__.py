"""Reads topics as ranges and streams; the options of the data source.

Batch: `plan_batch` (`planning.py`) turns options into a `Range` for each partition, and `cut` (`splits.py`)
divides ranges by ledgers, as a `Splitting` says. A task calls `read_range` (`rows.py`), which reads entries
(`EntryReader` in `reading.py`) into Arrow batches.

Stream: `StreamPlan` (`streaming.py`) keeps offsets, `triggers/` estimates how far limits reach
(`admission.py` computes it exactly), and `Subscriptions` acknowledges on durable subscriptions. Writing
topics belongs to `writing`. Read `options.py` for the names, then `rows.py`.

The driver plans and workers read, so the driver sends ranges and options. Options have the names of the JVM
connector; each has an effect, is refused, or causes a warning, and none is ignored silently.

Must not be broken: a read returns every message of a range once, in order, and a chunked message counts at
its last chunk; deleted data is a `DataLost` error unless the user allows it. Bytes belong to `columns`,
payload types to `values`, pyspark to `spark`.
"""
