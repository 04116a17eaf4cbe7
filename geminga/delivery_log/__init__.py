"""The opt-in log of every delivery: which message was published, sent or acknowledged, and when.

Publishing, dispatch and acknowledgement call `DeliveryLog.note` with a tuple (`notes.py` makes those of a
subscription). Ten times a second a thread turns them into a segment of columns and appends it to a file.
`log_format.py` has segments and file heads, `columns_format.py` tables and columns. Read `DeliveryLog` in
`delivery_log.py` first, then docs/formats/delivery-log.md. `Shipping` (`shipping.py`) publishes the segments
to a topic; `LogReader` (`log_reader.py`) reads them back from the files.

With the log, an audit (`pipeline/audit`) can prove which messages were lost, duplicated, early or late in a
run of any size, from the broker's own record beside those of producers and consumers. Columns store
differences to the least value, so an event takes a few bytes. Each segment is self-contained, so files can
be cut between segments and read in parallel.

Invariants: off, the log costs a comparison for each message. On, it never raises into the publish path and
is never synced, because the broker promises nothing about it. Events that cannot be written are counted and
logged as MISSED rather than dropped silently. The formats are pure and need numpy, which is imported at the
first use. Judging the events belongs to `pipeline/audit`.
"""
