"""What all parts of the bookie share: the record of an entry, file names, settings, counts. No I/O.

An entry becomes a record once, in the journal's thread (`pack_records`), and is copied as it is from there to
the write cache, the entry log and every compaction: its CRC-32C, which covers ledger id and entry id, goes
along, so bytes at a wrong place are noticed like wrong bytes. `Segment` holds consecutive entries of a ledger
in one buffer; `SegmentMap` finds them by (ledger, entry) and is what both write caches and the read cache are
made of. Read `records.py` first, then `segment_map.py`.

`ledger_mapping.py` says which journal and which ledger directory a ledger belongs to: its id modulo their
number, as in BookKeeper. That mapping is fixed with the first start and must never change, or entries are
looked for on the wrong disk.

A segment charges the whole buffer that it keeps alive, not only its own bytes; memory bounds depend on that.
The folder is at the bottom of the room: it imports nothing else of the bookie, and anything with a file
handle, a thread or a policy belongs above it.
"""
