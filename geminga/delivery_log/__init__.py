"""The opt-in log of every delivery: what the broker did with which message, and when.

Publishing, dispatch and acknowledgement call `DeliveryLog.note` with a tuple (`notes.py` makes those of a
subscription); a thread makes a segment of columns of them ten times a second and appends it to a file.
`log_format.py` has segments and file heads, `columns_format.py` tables and columns. Read `DeliveryLog` in
`delivery_log.py` first, then docs/formats/delivery-log.md. `Shipping` (`shipping.py`) publishes the segments
to a topic, read back from the files by `LogReader` (`log_reader.py`).

It exists so that an audit (`pipeline/audit`) can prove what was lost, doubled, early or late in a run of any
size, from the broker's own record beside those of producers and consumers. Columns with differences to the
least value take a few bytes for an event; each segment stands by itself, so files can be cut anywhere between
segments and read side by side.

Must not be broken: off, it costs a comparison for each message; on, it never raises into the publish path and
is never synced, because the broker promises nothing about it. What cannot be written is counted and logged as
MISSED rather than dropped in silence. The formats are pure and need numpy, which is imported with the first
use. Judging the events belongs to `pipeline/audit`.
"""
