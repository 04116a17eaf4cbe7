"""Entries and messages as Arrow columns: metadata, batches, payloads, ids. Pure, and all in numpy.

From a buffer of frames `read_entries` (`entries.py`) makes one row for each entry, its metadata fields read
by `scan` (`protobuf_columns.py`) for all entries together; `plain_payloads` completes chunked messages and
inflates; `split` (`batches.py`) follows the chain of messages in each batch; `ColumnMaker` (`columns.py`)
makes the columns that Spark takes. Writing is the inverse: `Rows`, `batch_payload` and `send_frame` in
`encoding.py`. Read `batches.py` first: its comment on runs of equal sizes explains the rest.

A call of numpy costs about a microsecond, so all messages take a step together, one field each, and runs of
batches with the same sizes are recognised at once. Whatever looks unusual falls back to protobuf, message by
message, with the same result.

Must not be broken: bytes that break the rules raise `ProtocolError` or `BadPayload`, allocate by what is
there and not by what a header claims, and never shift neighbouring rows; the order is the topic's. Sockets
belong to `client`, the meaning of payloads to `values`. All offsets of the pipeline are `MessageId`s (ledger,
entry, batch index).
"""
