"""Logs of deliveries into a report of what was lost, doubled, reordered, early or late.

Logs are Parquet files, the broker's delivery log, or topics (`logs.py`, `topics.py`), cut into pieces
(`pieces.py`). Each piece becomes `Events` (columns, `events.py`), a first scan finds what changes
expectations (`settings.py`), then `parts_of` (`partials.py`) makes bitmaps by ledger and minute; `judge`
(`ledger.py`) puts all parts of a ledger together, and `report_of` (`report.py`) makes tables and findings. As
a stream: `TopicAudit` (`stream.py`). Read `audit_logs` in `audit.py` first: all steps in one process.

Bitmaps by ledger, because an audit of 100 million deliveries has to fit into memory and to run ledger by
ledger side by side. Order is judged by piece with the first and last position of each lane; only a piece in
which a lane goes back is read again.

Must not be broken: pieces may be worked on in any order with the same result; a redelivery that the broker
announced is no duplicate, and a session (`sessions.py`) ends where its counts begin again; what the logs do
not say is reported as incomplete and never as lost. The rules are in docs/pipeline-audit.md. Writing the log
belongs to `delivery_log`, Spark to `spark/audit.py`.
"""
