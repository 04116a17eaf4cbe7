"""What the campaigns share: ways to break a life, many cases in many processes, one order for one seed.

`every_operation` names a case for each operation of a script and each way of `breaking.py`: the power goes
(unsynced writes kept, dropped or torn), an operation fails once or for good, the disk is full, recoveries are
cut short in their turn. `run_cases` runs them one after the other, `campaign` in a pool of processes, `Tally`
adds up what was done, and `run_command` is the command line around it. `run_deterministically` fixes trio's
order of tasks by seed, on a clock that no test waits for. Read `breaking.py` first, then `campaign.py`.

Exhaustive over short scripts first, random lives after: scripts take every path to the disk and give failures
that can be read, lives find what no script was written for.

Must not be broken: a case is run again from its name alone; a failure prints faults, last operations and that
command; whatever comes out of a life that its way of breaking does not explain is a bug and is raised. trio
has no public switch for its scheduling, so `tests/chaos/test_deterministic.py` notices if the private one
goes. Worlds, scripts and checks belong to `simulation/bookie` and `simulation/topic`.
"""
