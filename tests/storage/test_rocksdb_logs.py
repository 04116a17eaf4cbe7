"""A database whose write-ahead log was deleted is not taken for a whole one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from geminga.errors import CorruptData
from geminga.storage.key_value import RocksKeyValue


def test_a_deleted_write_ahead_log_is_missed(tmp_path: Path) -> None:
    live = tmp_path / "live"
    RocksKeyValue(str(live)).close()
    for number in range(3):
        values = RocksKeyValue(str(live))
        values.write([(b"key %d" % number, b"x")], sync=True)
        copies = [tmp_path / f"{number}-{kind}" for kind in ("killed", "closed")]
        shutil.copytree(live, copies[0])
        values.close()
        shutil.copytree(live, copies[1])
        for copy in copies:
            shutil.copytree(copy, f"{copy}-whole")
            values = RocksKeyValue(f"{copy}-whole")
            assert values.get(b"key %d" % number) == b"x"
            values.close()
            logs = list(copy.glob("*.log"))
            assert logs, "an opened or closed database always has a log"
            for log in logs:
                log.unlink()
            if list(copy.glob("*.sst")):
                with pytest.raises(CorruptData, match="its write-ahead log is missing"):
                    RocksKeyValue(str(copy))
