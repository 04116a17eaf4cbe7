"""Checks the logs of a RocksDB directory before RocksDB may read them."""

from __future__ import annotations

from geminga.errors import CorruptData
from geminga.storage.disk import RealDisk
from geminga.storage.rocksdb_log_format import WriteAheadCheck, damage_in_manifest


def check_logs(path: str) -> None:
    """Raise CorruptData if synced bytes of a log in this directory are damaged, or all write-ahead logs are
    gone.

    Each opening creates a new log, and syncs its name, before an older one is deleted. So a directory with
    tables had a log.
    """
    disk = RealDisk()
    if not disk.exists(path):
        return
    names = disk.list(path)
    for name in names:
        if name.startswith("MANIFEST-"):
            offset = damage_in_manifest(disk.read_file(f"{path}/{name}"))
            if offset is not None:
                raise CorruptData(f"{path}/{name}: damaged at offset {offset}")
    logs = sorted(name for name in names if name.endswith(".log"))
    if not logs and "CURRENT" in names and any(name.endswith(".sst") for name in names):
        raise CorruptData(f"{path}: damaged, its write-ahead log is missing: what was written last is lost")
    check = WriteAheadCheck()
    for name in logs:
        damage = check.add(name, disk.read_file(f"{path}/{name}"))
        if damage is not None:
            raise CorruptData(f"{path}/{damage[0]}: damaged at offset {damage[1]}, in data that was synced")
