"""Queries that run for long.

    python -m tests.pipeline.streams                    joined, away, merged
    python -m tests.pipeline.streams --steps joined

`joined`: two topics with watermarks, rows late and too late, the query stopped within a micro-batch and
started again; compared row by row with a batch join. `away`: the broker killed with SIGKILL under a query
within a micro-batch, one that waits and one that only writes, for --seconds; started again on its ports and
data; each row once. `--default` leaves the two options out with which the queries go on: they end and are
started again. `merged`: the recipe of docs/pipeline-recipes.md, its driver killed with SIGKILL three times.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from geminga.pipeline.spark import make_session
from tests.pipeline.streams.away import away
from tests.pipeline.streams.joined import joined
from tests.pipeline.streams.merged import merged

PATIENT = {"pollTimeoutMs": "120000", "sendTimeoutMs": "120000"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = ["joined", "away", "merged"]
    parser.add_argument("--steps", nargs="+", default=steps, choices=steps)
    parser.add_argument("--orders", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--default", action="store_true")
    arguments = parser.parse_args()
    for step in arguments.steps:
        print(step, flush=True)
        with tempfile.TemporaryDirectory() as name:
            if step == "merged":
                merged(Path(name))
            else:
                _in_session(step, Path(name), arguments)


def _in_session(step: str, directory: Path, arguments: argparse.Namespace) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
    }
    spark = make_session("streams", master="local[4]", settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    try:
        if step == "joined":
            joined(spark, directory, orders=arguments.orders)
        else:
            options = {} if arguments.default else PATIENT
            away(spark, directory, seconds=arguments.seconds, options=options)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
