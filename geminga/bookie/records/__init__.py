"""The parts that all of the bookie shares: records of entries, file names, settings, counts. No I/O.

The journal's thread makes a record of each entry once (`pack_records`). The record is copied unchanged to the
write cache, the entry log and every compaction. Its CRC-32C covers ledger id and entry id, so a read at a
wrong offset is detected like wrong bytes. `Segment` holds consecutive entries of a ledger in one buffer.
`SegmentMap` finds segments by (ledger, entry); both write caches and the read cache consist of segment maps.
Read `records.py` first, then `segment_map.py`.

`ledger_mapping.py` maps a ledger to its journal and its ledger directory: the ledger's id modulo their
number, as in BookKeeper. The first start fixes that mapping. It must never change, or the bookie looks for
entries on the wrong disk.

A segment is charged with the whole buffer that it keeps alive, not only with its own bytes; memory bounds
depend on that. The folder is at the bottom of the room: it imports nothing else of the bookie. Code with a
file handle, a thread or a policy belongs above it.
"""
