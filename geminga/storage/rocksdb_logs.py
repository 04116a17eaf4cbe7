"""Checks the logs of a RocksDB directory before RocksDB may read them, and cuts failed writes off."""

from __future__ import annotations

from geminga.errors import CorruptData
from geminga.storage.disk import Disk, RealDisk
from geminga.storage.rocksdb_log_format import WriteAheadCheck, damage_in_manifest, end_of_writes


def check_logs(path: str) -> None:
    """Raise CorruptData if synced bytes of a log in this directory are damaged, or all write-ahead logs are
    gone; SpecialFile if RocksDB would wait for ever at one of its files.

    Each opening creates a new log, and syncs its name, before an older one is deleted. So a directory with
    tables had a log.
    """
    disk = RealDisk()
    if not disk.exists(path):
        return
    disk.refuse_special_files(path)
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


def cut_logs(disk: Disk, path: str, sequence: int) -> None:
    """Remove all writes behind this sequence number from the write-ahead logs in the directory, and a torn
    one; durable on return. No process may have the database open. Blocking; needs no free space.
    """
    found_end = False
    # Oldest first: all logs after the first one with a write behind `sequence` have only such writes.
    for name in sorted(name for name in disk.list(path) if name.endswith(".log")):
        content = disk.read_file(f"{path}/{name}")
        end = 0 if found_end else end_of_writes(content, sequence)
        found_end = found_end or end < len(content)
        if end == len(content):
            continue
        file = disk.open(f"{path}/{name}")
        try:
            file.truncate(end)
            # Without this, a power cut could bring back a write whose caller was told that it failed.
            file.sync()
        finally:
            file.close()
