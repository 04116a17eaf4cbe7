"""Turns logs of deliveries into a report of messages lost, duplicated, reordered, early or late.

Logs are Parquet files, the broker's delivery log, or topics (`logs.py`, `topics.py`), cut into pieces
(`pieces.py`). Each piece becomes `Events` (columns, `events.py`). A first scan collects the events that
change expectations (`settings.py`); `parts_of` (`partials.py`) makes bitmaps by ledger and minute; `judge`
(`ledger.py`) combines all parts of a ledger, and `report_of` (`report.py`) makes tables and findings. As a
stream: `TopicAudit` (`stream.py`). Read `audit_logs` in `audit.py` first: it runs all steps in one process.

Bitmaps are by ledger, because an audit of 100 million deliveries has to fit into memory, and ledgers have to
be judged in parallel. Order is judged by piece, with the first and last position of each lane; only a piece
in which a lane goes back is read again.

Must not be broken: the result does not depend on the order of the pieces; a redelivery that the broker
announced is no duplicate, and a session (`sessions.py`) ends where redelivery counts start again; events that
the logs say are missing make the report incomplete and are never reported as lost messages. The rules are in
docs/pipeline-audit.md. Writing the log belongs to `delivery_log`, Spark to `spark/audit.py`.
"""
