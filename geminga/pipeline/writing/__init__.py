"""Writes the rows of one task to topics, exactly once if the user asks for that.

`TaskWriter` (`task_writer.py`) gives rows their topic, partition and sequence id (`sequences.py`) and passes
them to a `Lane` (`lane.py`) for each partition, which sends batches. Read these two first.

Exactly once: before a lane sends, `earlier_attempts.py` asks the broker for the producer's last sequence id.
If the broker knows one, or may have forgotten it, it also reads the topic's last entries (`last_entries.py`).
Each entry has a digest of the rows so far, by which `repetitions.py` decides what an earlier attempt at the
task has stored. `row_order.py` sorts the rows of a task, which a shuffle orders by chance; `deduplication.py`
finds out whether the broker deduplicates. `topic_nulls.py` takes from the topic's schema which fields of a
record may be null, for batch writes that are not exactly once.

Must not be broken: a task that runs again with the same rows gives them the same sequence ids; a row is
skipped as a repetition only if its digest was compared with the stored one (unless the user waives that); if
it is unknown what is stored, nothing is written. `repetitions.py` and `sequences.py` are pure. Spark's sink
is in `spark`; replays of exports write by their own lanes in `export`.
"""
