"""Rows of one task into topics, exactly once where that is asked for.

`TaskWriter` (`task_writer.py`) gives rows their topic, partition and sequence id (`sequences.py`) and hands
them to a `Lane` (`lane.py`) for each partition, which sends batches. Read these two first.

Exactly once: before a lane sends, `earlier_attempts.py` asks the broker and, where it knows of rows or has
perhaps forgotten them, the topic's last entries (`last_entries.py`). Each entry carries a digest of the rows
so far; by it `repetitions.py` decides what an earlier attempt at the task has stored. `row_order.py` sorts
the rows of a task, which a shuffle orders by chance; `deduplication.py` finds out whether the broker
deduplicates.

Must not be broken: a task that runs again with the same rows gives them the same sequence ids; a row is left
out as a repetition only if its digest was compared with what is stored (unless the user waives that); where
it cannot be told what is stored, nothing is written. `repetitions.py` and `sequences.py` are pure. The sink
of Spark is in `spark`; replays of exports write by their own lanes in `export`.
"""
