"""Writes topics to Parquet with all their metadata, and replays them to any broker.

Export (`exporting.py`): `plan_export` (`plan.py`) continues each topic from where the last run ended,
`exported_batches` makes the columns, and `write_range` (`range_files.py`) writes the files, which `inspect`
reads again. The manifest (`manifest.py`) is written last (`output.py`). Replay (`replay.py`): `prepare`
(`replay_targets.py`) creates topics, partitions, subscriptions and schemas, and refuses an invalid replay
early; `rows_in_order` (`stored_rows.py`) reads a partition from all its files; `replay_rows`
(`replaying.py`) passes rows to a `Lane` for each source partition, which rebuilds entries
(`replay_entries.py`) and sends them at a bounded rate. `Workers` (`workers.py`) runs the pieces. Read
`manifest.py`, then `replay_lane.py`.

A batch becomes a batch again with the same messages, because consumers of a Key_Shared subscription get whole
entries. Sequence ids are row numbers of the source, so a broker that deduplicates (PIP-6) stores each message
once, however often a replay is repeated.

Must not be broken: only the manifest says which files belong to the export, so a run that dies does not
affect earlier ones; order within a source partition; two source partitions never share a producer name. The
workers of Spark are in `spark/jobs.py`. docs/pipeline-export.md is the page for users.
"""
