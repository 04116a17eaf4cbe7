"""Composition root: opens the rooms from the disk upward, owns their nurseries, closes them in reverse.

`serve` binds both ports, locks the data directory, compares metadata and bookie (`metadata_check.py`), opens
both (including recovery), deletes orphaned ledgers, builds `Rooms`, `Topics`, `Connections` and the admin
router, and only then accepts connections. Read `serve` and `_serve` in `server.py` first. `open_bookie` in
`bookie_opening.py` checks that directories are those of the first start, and `room_settings.py` maps
`Config` to each room's settings. `listener.py` accepts connections, `descriptors.py` bounds their number,
and `admission.py` chooses idle ones to close for new ones. `loop_edges.py` does the work between two turns
of the loop.

Two nested nurseries: the inner one (connections, listeners) is cancelled first, then topics and cursors are
closed, and only then do journal and metadata writer stop. With one nursery, a stop would cut off receipts
and cursor states that are still being written. Dependencies are passed down from here, so that a test can
put any room on a simulated disk.

Invariants: nothing is served before recovery has flushed. A failed disk ends the process with a message that
names the file; a lack of file descriptors does not. Both ports answer within half a second of a start on an
empty directory, so imports are lazy. Rules about messages, topics or storage do not belong here.
"""
