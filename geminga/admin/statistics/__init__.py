"""Statistics in the shape, order and spelling of the JSON that Pulsar's admin API prints.

A route gets `TopicStatistics` or `ManagedLedgerStatistics` structs from the view; `topic_json` and
`PartitionedTotal` (`stats_json.py`) and `internal_stats_json` turn them into structs whose fields are those
of a real 4.0 broker, which msgspec encodes. Read `Topic` in `stats_json.py` first.

A separate copy of the fields, although most have the same name in the broker: the JSON is an outside contract
with clients in typed languages, which want every field there, also those that never differ from their default
here. `_fill` copies what has the same name, so a new field of the broker appears only when it is added on
purpose. What Pulsar leaves out when it has no value is UNSET, not null.

Must not be broken: sums of a partitioned topic add up over partitions, subscriptions by name; the ledger
being written is listed with 0 entries and bytes, as Pulsar does; times are printed as Java prints an instant.
Nothing is counted here and nothing waits. Counting belongs to the broker and `managed_ledger`, Prometheus to
`admin/metrics`.
"""
