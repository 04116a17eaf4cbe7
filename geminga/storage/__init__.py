"""The only ways to files (`disk.py`) and to RocksDB (`key_value.py`).

All code that opens, writes, syncs, renames or locks a file calls a `Disk`; every ordered map is a
`KeyValue`. Before RocksDB opens a directory, `rocksdb_logs.py` checks its write-ahead log and manifest, and
refuses damage that RocksDB would take for a torn end. Read the protocols `Disk` and `File` first, then the
list of facts at the top of `rocksdb.py`. Behind `disk.py` are a file of the system (`real_file.py`), the
lock of a directory, and the errors. `rocksdb_errors.py` interprets RocksDB's errors; `descriptor_wait.py`
waits for file descriptors.

Each of the two protocols has two implementations: the real one here, and one that loses power in
`simulation/disk`. That is why no other module may write files or import `rocksdict`: a crash campaign does
not see a write that bypasses these modules. `tests/test_imports.py` checks this for RocksDB, ruff for syncs.

Invariants: bytes are not durable before `File.sync`, a name not before `sync_directory`. A failed sync is
final, because the kernel may have dropped the pages and a second sync would falsely succeed. Errors are
`StorageError`s that name the file. Methods block, and run off the loop through `Disk.run` if they may wait
for a disk. File formats, retries and decisions about damage belong to the rooms that own the files.
"""
