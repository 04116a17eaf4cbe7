"""The only doors to files (`disk.py`) and to RocksDB (`key_value.py`).

Everything that opens, writes, syncs, renames or locks a file calls a `Disk`; every ordered map is a
`KeyValue`. Before RocksDB opens a directory, `rocksdb_logs.py` looks through its write-ahead log and manifest
and refuses damage that RocksDB would take for a torn end. Read the protocols `Disk` and `File` first, then
the list of facts at the top of `rocksdb.py`. Behind `disk.py` are a file of the system (`real_file.py`), the
lock of a directory and the errors; what RocksDB's errors mean is in `rocksdb_errors.py`; what waits for
descriptors, in `descriptor_wait.py`.

Two protocols, two implementations each: the real ones here, the ones that lose power in `simulation/disk`.
That is why no other module may write files or import `rocksdict` by itself: a write that goes around the door
is one that no crash campaign sees. `tests/test_imports.py` checks it for RocksDB, ruff for syncs.

Must not be broken: written is not durable before `File.sync`, a name not before `sync_directory`; a failed
sync is final, since the kernel may have dropped the pages and a second sync would lie; errors are
`StorageError`s that name the file. Methods block, and run off the loop through `Disk.run` wherever they may
wait for a disk. File formats, retries and decisions about damage belong to the rooms that own the files.
"""
