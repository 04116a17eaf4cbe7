"""Run the tests of the alert rules for a scrape each minute, as they are written, and for one each 15 s.

    python -m tests.docker.alerts [--promtool PROGRAM]

Each value then stands four times, and a step is a fourth. The exit code is 1 if an alert is not as expected.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docker.test_dashboards import RULES

TESTS = RULES.with_name("rules_test.yml")
VALUE = re.compile(r"(?P<first>[\d.]+|_)(?:\+(?P<step>\d+))?(?:x(?P<more>\d+))?")
STALE = "stale _x3"


def four_times(value: str) -> str:
    """One word of promtool's short form for values: `1`, `_`, `stale`, or a row: `1x9`, `0+10x9`, `_x9`."""
    if value == "stale":
        return STALE
    match = VALUE.fullmatch(value)
    assert match is not None, value
    first, more = match["first"], int(match["more"] or 0)
    if first == "_":  # the only row without a first value: _x3 are three
        return f"_x{4 * (more or 1)}"
    step = f"+{int(match['step']) / 4}" if match["step"] else ""
    return f"{first}{step}x{4 * more + 3}"


def each_quarter(text: str) -> str:
    values = re.compile(r'(?<=values: ")[^"]*')
    text = values.sub(lambda row: " ".join(map(four_times, row[0].split())), text)
    return text.replace("interval: 1m", "interval: 15s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--promtool", default="promtool")
    promtool = parser.parse_args().promtool
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / RULES.name).write_text(RULES.read_text())
        tests = {"1m": TESTS.read_text(), "15s": each_quarter(TESTS.read_text())}
        failed = 0
        for interval, text in tests.items():
            path = directory / f"{interval}.yml"
            path.write_text(text)
            failed += subprocess.run([promtool, "test", "rules", path], check=False).returncode != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
