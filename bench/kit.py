"""A hundred tests with the test kit, each of one virtual second, in one process and on two workers.

    python -m bench.kit [--tests 100]

A line for each way: the seconds from the command to its end, the CPU seconds of all its processes, and what
pytest said.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.testing.test_kit import SHORT, run_pytest


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kit")
    parser.add_argument("--tests", type=int, default=100)
    flags = parser.parse_args()
    failed = 0
    for arguments in ((), ("-n", "2")):
        with tempfile.TemporaryDirectory(prefix="geminga-kit-") as directory:
            (Path(directory) / "test_it.py").write_text(SHORT.format(count=flags.tests))
            began, before_s = time.monotonic(), cpu_s()
            done = run_pytest(Path(directory), *arguments)
            took_s, used_s = time.monotonic() - began, cpu_s() - before_s
        failed += done.returncode != 0
        way = " ".join(arguments) or "one process"
        print(f"{way}: {took_s:.1f} s, CPU {used_s:.1f} s; pytest: {done.stdout.strip().splitlines()[-1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
