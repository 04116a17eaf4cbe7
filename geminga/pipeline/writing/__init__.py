"""Rows of one task into topics, exactly once where that is asked for.

`TaskWriter` (`task_writer.py`) gives rows their topic, partition and sequence id (`sequences.py`) and sends
them in batches, by a producer for each partition. `deduplication.py` finds out whether the broker deduplicates.

Must not be broken: a task that runs again with the same rows makes the same batches with the same sequence
ids, which is what makes deduplication by the broker (PIP-6) exact. `sequences.py` is pure. The sink of Spark
is in `spark`; replays of exports write by their own lanes in `export`.
"""
