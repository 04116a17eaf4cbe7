"""Entries and messages as Arrow columns: metadata, batches, payloads, ids. Pure, and all in numpy.

`read_entries` (`entries.py`) makes one row for each entry of a buffer of frames; `scan`
(`protobuf_columns.py`) reads the metadata fields of all entries together. `plain_payloads` joins chunked
messages and decompresses; `split` (`batches.py`) follows the chain of messages in each batch; `ColumnMaker`
(`columns.py`) makes the columns that Spark takes. Writing is the inverse: `Rows`, `batch_payload` and
`send_frame` in `encoding.py`. Read `batches.py` first: its comment on runs of equal sizes explains the rest.

A numpy call costs about a microsecond, so each step handles one field of all messages, and runs of batches
with the same sizes are recognised at once. Unusual input is parsed by protobuf, message by message, with the
same result.

Must not be broken: bytes that break the rules raise `ProtocolError` or `BadPayload`, allocate by their real
size and not by what a header claims, and never shift neighbouring rows; the order is the topic's. Sockets
belong to `client`, the meaning of payloads to `values`. All offsets of the pipeline are `MessageId`s (ledger,
entry, batch index).
"""
