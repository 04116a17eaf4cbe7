"""Rows per CPU-second of a batch write: rows of 100 bytes that Spark makes up, in batches of 1,000.

    python bench/pipeline/write.py                    1,000,000 rows, four rounds, two tasks
    python bench/pipeline/write.py --rows 200000 --keyed --compression lz4

CPU is that of the driver's JVM and everything below it. What was written is counted by reading it back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.rig import ROW_BYTES, broker, jvm_pid, measured
from geminga.pipeline.spark import make_session

TASKS = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--keyed", action="store_true")
    parser.add_argument("--service-url")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        broker(Path(name), arguments.service_url) as endpoints,
    ):
        spark = make_session(master=f"local[{TASKS}]", settings={"spark.ui.enabled": "false"})
        root = jvm_pid(spark)
        columns = [f"cast(rpad(cast(id as string), {ROW_BYTES}, 'x') as binary) as value"]
        if arguments.keyed:
            columns.append("cast(id % 1000 as string) as __key")
        for round_number in range(arguments.rounds):
            topic = f"persistent://public/default/pipeline-write-{round_number}"
            frame = spark.range(arguments.rows, numPartitions=TASKS).selectExpr(*columns)
            writer = frame.write.format("pulsar").option("service.url", endpoints.service_url)
            writer = writer.option("topic", topic).option("compression", arguments.compression)
            with measured(root) as found:
                writer.mode("append").save()
            kind = "cold" if round_number == 0 else "warm"
            rate = arguments.rows / found["cpu"] / 1000
            print(f"{kind} {rate:6.0f} k rows per CPU-second   {found['wall']:6.1f} s", flush=True)
        read = spark.read.format("pulsar").option("service.url", endpoints.service_url).option("topic", topic)
        found_rows = read.load().selectExpr("count(*)", "count(distinct value)").first()
        assert tuple(found_rows) == (arguments.rows, arguments.rows), found_rows
        spark.stop()


if __name__ == "__main__":
    main()
