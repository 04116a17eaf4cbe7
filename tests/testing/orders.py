"""A hundred tests that share a clock, in random orders: the example project's, eight times each, and four
with absolute times.

    python -m tests.testing.orders [--runs 50] [--seed 1] [--workers 2]

Plain tests, those of asyncio and those of trio share a broker in each worker, and its clock. A line for each
run, with the seed of its order. Exit code 1 unless all tests of all runs passed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.testing.test_kit import ABSOLUTE, EXAMPLE, run_pytest

CONFTEST = f"""
import pytest
from test_example import SETTINGS

@pytest.fixture(scope="session")
def geminga_settings():
    return SETTINGS

def pytest_generate_tests(metafunc):
    if metafunc.module.__name__ == "test_example":
        metafunc.fixturenames.append("turn")
        metafunc.parametrize("turn", range({(100 - 4) // 12}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testing.orders")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    flags = parser.parse_args()
    right = 0
    with tempfile.TemporaryDirectory(prefix="geminga-orders-") as directory:
        folder = Path(directory)
        shutil.copy(EXAMPLE, folder / "test_example.py")
        (folder / "test_absolute.py").write_text(ABSOLUTE)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
        for seed in range(flags.seed, flags.seed + flags.runs):
            began = time.monotonic()
            done = run_pytest(folder, "-q", "-n", str(flags.workers), f"--randomly-seed={seed}")
            told = re.findall(r"\d+ (?:passed|failed|errors?).*", done.stdout)
            right += done.returncode == 0 and told[-1].startswith("100 passed")
            print(
                f"seed {seed}: {told[-1] if told else 'no result'}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if done.returncode:
                print(done.stdout[-8000:], flush=True)
    print(f"{right} of {flags.runs} runs: all 100 tests passed")
    return 0 if right == flags.runs else 1


if __name__ == "__main__":
    sys.exit(main())
