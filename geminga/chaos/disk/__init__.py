"""Faults of disks: before the files of the bookie, the databases, and the metadata store.

With `--chaos`, the composition root opens everything through these classes; without it, through the ones that
they extend. `FaultyDisk` (`faulty_disk.py`) gives the journal's files and entry logs as `FaultyFile`s, and
reports no free space while a rule says so. `FaultyIndexDatabase` (`faulty_index.py`) is the index of the
bookie, `FaultyMetadata` (`faulty_metadata.py`) the metadata store.

An injected failure is raised where the real one would be, as the same error, so all that follows is what the
broker does with a real disk. A torn write writes half of its bytes and ends the process.
"""
