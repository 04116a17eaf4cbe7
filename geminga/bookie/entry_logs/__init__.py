"""Entry logs: the files that store the entries of all ledgers until garbage collection frees them.

`EntryLogWriter.write` takes a flushed write cache, sorted by ledger and entry; it is durable on return. A
log that is long enough is closed with a footer. `EntryLogs.load` reads a row back and checks each record.
Without the index, the entries of a log are found from its footer or record by record (`scan.py`); a start
does so for every record that the index does not cover (`uncovered.py`). Compaction uses `logs_to_compact` to
choose logs with few living records, and copies them in slices (`LogSlices`). Read `writer.py`, then
`reader.py`.

After BookKeeper's entry logger, including the thresholds and intervals of minor and major compaction. A
flush sorts instead of writing in order of arrival, which makes later reads of one ledger sequential. The
footer has the index rows and each ledger's topic. So a lost index is rebuilt, and a broken directory
rescued, without reading every record. A log is copied slice by slice, so that neither a flush nor a deletion
waits for a whole log.

Invariants: a log that a crash left open is never continued; ids are never reused; a copy is durable before
the index names it. All methods block and run off the loop. `bookie/running` decides when to flush and when
to collect. docs/formats/entry-log.md has the bytes.
"""
