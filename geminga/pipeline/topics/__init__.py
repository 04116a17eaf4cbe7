"""Topics read as ranges and streams, and the options of the data source.

Batch: `plan_batch` (`planning.py`) turns options into a `Range` for each partition and `cut` (`splits.py`)
cuts ranges by ledgers; a task calls `read_range` (`rows.py`), which reads entries (`EntryReader` in
`reading.py`) into Arrow batches.

Stream: `StreamPlan` (`streaming.py`) keeps offsets, `triggers/` says how far limits reach (`admission.py`
where that has to be exact), `Subscriptions` moves durable subscriptions behind. The package `writing` writes.
Read `options.py` for the names, then `rows.py`.

The driver plans and workers read, so what travels is a range and options. Options have the names of the JVM
connector; each has an effect, is refused, or is warned about, and none is ignored in silence.

Must not be broken: every message of a range comes once, in order, and a chunked message counts where its last
chunk is; data that is gone is `DataLost` unless the user allows it. Bytes belong to `columns`, payload types
to `values`, pyspark to `spark`.
"""
