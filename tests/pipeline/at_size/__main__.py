"""The data source at size: many partitions, many rows, skew, versions of a schema. Prints a table of figures.

    python -m tests.pipeline.at_size                                       all steps, a broker of its own
    python -m tests.pipeline.at_size --steps partitions --partitions 200
    python -m tests.pipeline.at_size --steps versions --service-url pulsar://localhost:6650 \\
        --web-url http://localhost:8080                                    on another one, a real Pulsar

A row has seconds, CPU seconds of Spark's processes and of the broker, and the most memory that Spark's JVM,
the largest of its Python processes and the broker had. Counts, sums and records are compared; what differs
is printed with WRONG, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.pipeline.at_size import one_partition, partitions, skew, versions
from tests.pipeline.at_size.figures import Figures
from tests.pipeline.at_size.rig import rig

STEPS = ("one", "skew", "versions", "pattern", "partitions")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--skewed-rows", type=int, default=1_000_000)
    parser.add_argument("--version-rows", type=int, default=300_000)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--service-url")
    parser.add_argument("--web-url")
    given = parser.parse_args()
    figures = Figures()
    with rig(given.service_url, given.web_url, figures) as parts:
        if "partitions" in given.steps:
            partitions.run(parts, given.partitions)
        if "one" in given.steps:
            one_partition.run(parts, given.rows)
        if "skew" in given.steps:
            skew.run(parts, given.skewed_rows)
        if "versions" in given.steps:
            versions.run(parts, given.version_rows)
        if "pattern" in given.steps:
            partitions.run_pattern(parts, given.topics)
    print("wrong" if figures.wrong else "right", flush=True)
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
