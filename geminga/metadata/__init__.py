"""The metadata store: versioned values under slash-separated paths, durable when acknowledged.

A write comes to `MetadataStore.put`, `delete` or `transact`, is checked against the version that its caller
expects, and queues in `GroupCommit`; all that is queued while one sync runs becomes the next batch, synced
once. Waiters wake when their batch is durable, and `Watchers` hear of the change. Reads answer from what is
durable and never wait for the writer. Read `MetadataStore` in `store.py` first, then `records.py` for what
the tree holds and where.

This is the part that ZooKeeper or the metadata store of PIP-45 plays for Pulsar: a compare-and-set per node,
here with transactions over several nodes, so that a topic and all its cursors go in one write. Paths are
stored with their depth first (`keys.py`), so listing children costs the children and not the subtree.

Must not be broken: a value names its record kind and format version, unknown fields are ignored and newer
formats refused; ledger ids come in synced blocks and are never given twice (`LedgerIds`); `check_instance`
runs before anything else is read. After a failed write the store stops. What the records mean, and in which
order they are written, belongs to `managed_ledger`, `broker/policies` and `broker/schemas`.
docs/formats/metadata.md has the bytes.
"""
