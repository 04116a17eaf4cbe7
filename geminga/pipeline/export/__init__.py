"""Topics to Parquet with all their metadata, and back to any broker.

Export (`exporting.py`): `plan_export` (`plan.py`) continues each topic from where the last run ended,
`exported_batches` makes the columns, `write_range` (`range_files.py`) the files, which are read again
(`inspect`), and the manifest (`manifest.py`) is written last (`output.py`). Replay (`replay.py`): `prepare`
(`replay_targets.py`) makes topics, partitions, subscriptions and schemas ready and refuses what can be
refused; `rows_in_order` (`stored_rows.py`) reads a partition out of all its files; `replay_rows`
(`replaying.py`) sorts rows to a `Lane` for each source partition, which rebuilds entries
(`replay_entries.py`) and sends them at a pace. `Workers` (`workers.py`) is where the pieces are done.
Read `manifest.py`, then `replay_lane.py`.

A batch becomes a batch again with the same messages, because consumers of a Key_Shared subscription get whole
entries. Sequence ids are row numbers of the source, so a broker that deduplicates (PIP-6) stores each message
once however often a replay is tried.

Must not be broken: what the manifest does not name does not belong to the export, so a run that dies leaves
the earlier one intact; order within a source partition; two source partitions never share a producer name.
The workers of Spark are `spark/jobs.py`. docs/pipeline-export.md is the page for users.
"""
