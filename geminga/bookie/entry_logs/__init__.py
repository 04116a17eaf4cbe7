"""Entry logs: the files in which entries of all ledgers stay until garbage collection frees them.

A flushed write cache goes through `EntryLogWriter.write`, sorted by ledger and entry, and is durable on
return; a log that is long enough is closed with a footer. `EntryLogs.load` reads a row back and checks each
record. Without the index a log is found again from its footer or record by record (`scan.py`). Compaction
asks `logs_to_compact` which logs have little left alive and copies them by slices (`LogSlices`). Read
`writer.py`, then `reader.py`.

After BookKeeper's entry logger, including the thresholds and intervals of minor and major compaction. Sorting
at the flush, rather than writing in order of arrival, makes later reads of one ledger sequential. The footer
holds the index rows and each ledger's topic, so that a lost index is rebuilt, and a broken directory rescued,
without reading every record. A log is copied slice by slice so that neither a flush nor a deletion waits for
a whole log.

Must not be broken: a log that a crash left open is never continued; ids are never reused; a copy is durable
before the index names it. All of it blocks and runs off the loop. When to flush and when to collect is
decided in `bookie/running`. docs/formats/entry-log.md has the bytes.
"""
