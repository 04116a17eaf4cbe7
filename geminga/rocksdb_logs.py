"""A look at a RocksDB directory's logs before RocksDB may read them."""

from __future__ import annotations

from geminga.disk import RealDisk
from geminga.errors import CorruptData
from geminga.rocksdb_log_format import WriteAheadCheck, damage_in_manifest


def check_logs(path: str) -> None:
    """CorruptData if a log of this directory is damaged in a place that had been synced."""
    disk = RealDisk()
    if not disk.exists(path):
        return
    names = disk.list(path)
    for name in names:
        if name.startswith("MANIFEST-"):
            offset = damage_in_manifest(disk.read_file(f"{path}/{name}"))
            if offset is not None:
                raise CorruptData(f"{path}/{name}: damaged at offset {offset}")
    check = WriteAheadCheck()
    for name in sorted(name for name in names if name.endswith(".log")):
        damage = check.add(name, disk.read_file(f"{path}/{name}"))
        if damage is not None:
            raise CorruptData(f"{path}/{damage[0]}: damaged at offset {damage[1]}, in data that was synced")
