"""How parallel workers (pytest-xdist) divide the tests: by file, and all files on Spark together.

A file stays whole because its tests share a broker. The tests that share the Spark session run in one worker:
a session takes ten seconds to start, and half a gigabyte.

pytest-xdist's own `loadgroup` does not do it: version 3.8.0 adds the group to `Item._nodeid`, which pytest 9
no longer reads, so that each test is distributed by itself, without a warning.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
SPARK_FIXTURE = re.compile(r"[(,]\s*(?:on_)?spark\b\s*[:,)]|usefixtures\([^)]*\"(?:on_)?spark\"")


class FilesAndSpark(LoadScopeScheduling):
    """Larger groups begin first, unless `--no-loadscope-reorder` is given."""

    @cached_property
    def on_spark(self) -> set[str]:
        """The files whose tests take the fixture `spark`, as they are named in node ids."""
        return {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "tests" / "pipeline").rglob("test_*.py")
            if SPARK_FIXTURE.search(path.read_text())
        }

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file in self.on_spark else file
