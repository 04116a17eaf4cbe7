"""The metadata store: versioned values under slash-separated paths, durable when acknowledged.

`MetadataStore.put`, `delete` or `transact` checks a write against the expected version, and queues it in
`GroupCommit`. All writes that are queued during one sync become the next batch, which is synced once. When
the batch is durable, its waiters wake and `Watchers` get the changes. Reads return durable state and never
wait for the writer. Read `MetadataStore` in `store.py` first, then `records.py` for the content of the tree.

The counterpart in Pulsar is ZooKeeper, or the metadata store of PIP-45: a compare-and-set per node. Here
transactions may cover several nodes, so that one write creates or deletes a topic with all its cursors.
Paths are stored with their depth first (`keys.py`), so listing children costs a row per child, not the
subtree.

Invariants: a value names its record kind and format version, unknown fields are ignored, and newer formats
are refused. Ledger ids come in synced blocks and are never assigned twice (`LedgerIds`). `check_instance`
runs before anything else is read. After a failed write the store stops. The meaning of records, and the
order of writes, belong to `managed_ledger`, `broker/policies` and `broker/schemas`. docs/formats/metadata.md
has the bytes.
"""
