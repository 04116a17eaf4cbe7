"""The simulated disk and key-value store: durable and pending state kept apart, faults by plan, all by seed.

A write goes to `SimFile` and its `Inode`, where readers see it at once and a crash may keep, lose, zero or
tear it in sectors until it is synced; names behave likewise for each directory (`SimNames`). `SimKeyValue`
promises what RocksDB promises: whole batches, in order, with a crash keeping what was synced and a prefix of
the rest. `DiskFaults` plans EIO, short writes and a full disk. Read the docstring of `sim_disk.py` first: it
is the fault model.

The model follows what file systems and disks are documented to do, pessimistically: writes persist out of
order unless a sync orders them, a failed sync loses data that readers still see (as Linux does), a length may
get there without its bytes. What real disks keep is kept too, or every program would fail.

Must not be broken: the same seed and operations give the same disk; every operation passes `SimDisk.step`, or
the power is never cut there; `tests/chaos/test_real_kernel.py` compares the model with a real kernel. Nothing
here knows a bookie or a topic. What is broken when is decided in `campaign` and the cases.
"""
