"""What happened in the broker, in order: one stream of events for operators, tests and scenarios.

A room that changes something worth telling calls `record` (`recording.py`); `kinds.py` lists what can be
told, and what each kind counts. `EventLog.record` (`event_log.py`) gives the event its number and its two
times, and keeps it in a ring in memory; a task writes it behind to two files of bounded size
(`event_files.py`), which the next start goes on with. Readers ask by number: from memory, or from the files
for what is older.

The stream is a report, not a record of truth: an event is not durable when it is recorded, a full disk costs
events and nothing else, and no room reads it. Begin with `EventLog`.
"""
