"""The crash campaign of a topic: every way of deleting data, with power cuts and faults at every operation.

A `TopicWorld` (`world.py`) is bookie, metadata and one topic on a simulated disk; `TopicLife` (`life.py`)
publishes, subscribes, acknowledges, trims, expires, deletes and delays, and notes each before it begins and
once it is done; `TopicTruth` (`truth.py`) is what was promised. After the cut `check` (`check.py`) opens what
is left. `python -m simulation.topic.topic_campaign` runs scripts and random lives. Read `truth.py`, then
`check.py`.

It tests the order of ARCHITECTURE.md's "Space": storage first when something is made, metadata first when it
is deleted. References are looked at before the sweep of the next start (no record names a ledger that is
gone), leaks after it (no ledger that no record names). `TopicDelay` (`delays.py`) brings buckets of the
delayed index in: sealing, merging, recovery, as in `tracker/buckets`.

Must not be broken: what was begun and not answered may have happened or not, as a whole, and a check must
accept both; mark-delete positions go back at most to what was durable. Connections, dispatchers and policies
are not simulated: the world ends at the managed ledger and the index.
"""
