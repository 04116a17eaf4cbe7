"""Cursors: the acknowledgements of a subscription, and how they become durable.

An acknowledgement goes to `Acknowledgments` (single, cumulative, or by batch index). It moves the markDelete
position if the hole after it closes; otherwise it sets a bit in a roaring bitmap of the ledger. `Cursor`
marks itself dirty, and `CursorLedger` writes the whole state as one entry of the cursor's own ledger: at
close, and when `CursorSaver` (`managed_ledger/cursor_saver.py`) writes those of all topics together. Read
`Acknowledged` in `acknowledged.py` first for the invariants, then `cursor.py`. readPosition is an attribute
of the cursor that the dispatcher moves; this room sets it only on opening and on reset.

The counterpart is Pulsar's ManagedCursorImpl with individualDeletedMessages. A state is self-contained, so
recovery reads the last readable entry and never replays deltas; bitmaps keep it small with millions of
holes.

Invariants: a crash takes acknowledgements back to the last written state and never forward, because an
acknowledgement that appears from nowhere is a lost message. A switch of cursor ledgers is durable in the
order new ledger, state, record, deletion of the old one. `bucket_properties.py` knows the names of the
delayed index's properties only so that their ledgers are deleted with the record; the content of a bucket
belongs to `tracker`. Consumers and redelivery belong to the broker.
"""
