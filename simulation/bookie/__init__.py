"""The crash campaign of the bookie: power cuts and failing operations at every step, then a check.

A `BookieWorld` (`world.py`) has one simulated disk, an index for each ledger directory, and a `SimLedger` for
each ledger that keeps what was added and what was reported durable. A script (`scripts.py`) drives it;
`run_case` (`cases.py`) breaks it where the case's name says (`bursts:41:torn`) and checks. `python -m
simulation.bookie.crash_campaign --points 100000 --seed 1` runs all. Read `world.py` first:
`BookieWorld.check` lists the promises.

The promises: nothing reported durable is lost or altered, nothing is served that was never added, deleted
ledgers stay away, fences hold, and what was served once is served after the next crash too. They are
BookKeeper's to its clients, without the quorum. Settings are tiny, so that rolling journals, both write
caches, entry logs and compaction occur within a short script.

Must not be broken: records of promises live outside the bookie and across crashes; a check crashes again
itself, since recovery is a life too; after a failed disk nothing is left waiting. A new path to the disk
needs a script that takes it. Topics and cursors are checked in `simulation/topic`.
"""
