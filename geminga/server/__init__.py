"""Composition root: opens the rooms from the disk upward, owns their nurseries, closes them in reverse.

`serve` binds both ports, locks the data directory, compares metadata and bookie (`metadata_check.py`), opens
both (recovery included), sweeps orphaned ledgers, builds `Rooms`, `Topics`, `Connections` and the admin
router, and only then accepts. Read `serve` and `_serve` in `server.py` first; `open_bookie` in
`bookie_opening.py` checks that directories are those of the first start, `room_settings.py` maps `Config` to
each room's settings, `listener.py` accepts, `descriptors.py` says how many connections, and `admission.py`
which of them go for newcomers. `loop_edges.py` is what happens between two turns of the loop.

Two nested nurseries: the inner one (connections, listeners) is cancelled first, then topics and cursors are
closed, and only then do journal and metadata writer stop. Were it one nursery, a stop would cut off receipts
and cursor states that are still being written. Dependencies are handed down from here and never reached for,
so that a test can put any room on a simulated disk.

Must not be broken: nothing is served before recovery has flushed; a failed disk ends the process with a
message that names the file, and a lack of descriptors does not; both ports answer within half a second of a
start on an empty directory, so imports stay lazy. No rule about messages, topics or storage belongs here.
"""
