"""An export to S3 and back that is killed again and again: the same messages in the same order in the end.

    pip install "moto[server]"
    python -m tests.pipeline.exactness.object_store --kills 6
    python -m tests.pipeline.exactness.object_store --endpoint http://127.0.0.1:9000 --master "local[2]"

A Geminga and, unless an endpoint is named, moto's S3 server are started here. `export --continue` and
`replay` run as processes of their own, killed (SIGKILL) while they work; messages are published between.
Compared: values, keys, properties, event times and batch indexes of each partition, in order.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from geminga.pipeline.columns.columns import ColumnMaker, column_names
from geminga.pipeline.export.output import load
from geminga.pipeline.files.files import Files
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess

BUCKET, PARTITIONS = "geminga-trip", 3
OUT = f"s3a://{BUCKET}/exports/trip"
SOURCE, TARGET = "persistent://public/default/trip", "persistent://public/copies/trip"
SAME = ("value", "__key", "__messageProperties", "__eventTime", "__batchIndex")


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def s3(endpoint: str | None) -> Iterator[str]:
    if endpoint is not None:
        yield endpoint
        return
    from moto.server import ThreadedMotoServer  # type: ignore[import-not-found,unused-ignore]

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    finally:
        server.stop()


def publish(service_url: str, first: int, count: int) -> None:
    options = parse_options({"service.url": service_url, "topic": SOURCE, "batchRows": "20"})
    numbers = range(first, first + count)
    rows = {
        "value": [b"%d|%s" % (n, b"x" * (n % 200)) for n in numbers],
        "__key": [f"k{n % 50}" for n in numbers],
        "__messageProperties": [{"n": str(n)} for n in numbers],
        "__eventTime": [1_600_000_000_000_000 + n * 1000 for n in numbers],
    }
    kinds = {"value": pa.binary(), "__key": pa.string(), "__eventTime": pa.timestamp("us", "UTC")}
    kinds["__messageProperties"] = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(rows[n], kinds[n]) for n in rows], names=list(rows))
    writer = TaskWriter(options, Task("fill", first, 0))
    try:
        writer.write(iter([batch]))
    finally:
        writer.close()


def stored(service_url: str, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    """What is compared of the messages of each partition, in order."""
    options = parse_options({"service.url": service_url, "topic": topic, "columns": "__batchIndex"})
    fields = {"value": pa.binary()} | column_names(options.more_columns)
    schema = pa.schema(list(fields.items()))
    found: dict[int, list[tuple[Any, ...]]] = {}
    for wanted in plan_batch(options):
        maker = ColumnMaker(wanted.topic, schema)
        rows = found.setdefault(int(wanted.topic.rpartition("-")[2]), [])
        for batch in read_range(options.access, wanted, maker, poll_timeout_s=options.poll_timeout_s):
            rows += [tuple(map(str, (row[name] for name in SAME))) for row in batch.to_pylist()]
    return found


def command(*arguments: str, kill_after_s: float | None, environment: dict[str, str]) -> bool:
    """Run a command of `geminga pipeline`, kill it after a while; whether it ended by itself, and well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "geminga", "pipeline", *arguments],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        _, error = process.communicate(timeout=kill_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return False
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}: {error}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--endpoint", help="of an S3 server that runs already")
    parser.add_argument("--master", default="none")
    parser.add_argument("--kills", type=int, default=6, help="of each command")
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--longest", type=float, default=6.0, help="seconds until a kill, at most")
    flags = parser.parse_args()
    source = random.Random(7)
    with tempfile.TemporaryDirectory() as directory, s3(flags.endpoint) as endpoint:
        names = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
        names["AWS_REGION"] = "us-east-1"
        os.environ.update(names)
        request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request)
        # Spark takes a while to come back to its topics.
        kept = {"brokerDeleteInactiveTopicsEnabled": "false"}
        with BrokerProcess(Path(directory) / "data", settings=kept) as broker:
            url = broker.endpoints.service_url
            admin = Admin(broker.endpoints.web_url)
            assert admin.put("/admin/v2/namespaces/public/copies").status in (204, 409)
            assert admin.post("/admin/v2/namespaces/public/copies/deduplication", True).status == 204
            admin.create_partitions(SOURCE, PARTITIONS)
            admin.create_partitions(TARGET, PARTITIONS)
            place = ("--master", flags.master, "--url", url)
            step = flags.messages // (flags.kills + 1)
            kills = 0
            for number in range(flags.kills + 1):
                publish(url, number * step, step)
                wait_s = source.uniform(0.3, flags.longest)
                ended = command(
                    "export",
                    SOURCE,
                    "--continue",
                    "--out",
                    OUT,
                    *place,
                    kill_after_s=wait_s,
                    environment=names,
                )
                kills += not ended
            command(
                "export", SOURCE, "--continue", "--out", OUT, *place, kill_after_s=None, environment=names
            )
            manifest = load(Files(), OUT)
            rows = sum(file.rows for file in manifest.files)
            tell(f"exported {rows:,} messages in {len(manifest.runs)} runs, {kills} killed")
            kills = 0
            replay = ("replay", OUT, "--namespace", "public/copies", *place)
            for _ in range(flags.kills):
                kills += not command(
                    *replay, kill_after_s=source.uniform(0.3, flags.longest), environment=names
                )
            command(*replay, kill_after_s=None, environment=names)
            before, after = stored(url, SOURCE), stored(url, TARGET)
            counts = [sum(map(len, found.values())) for found in (before, after)]
            assert [rows, *counts] == [step * (flags.kills + 1)] * 3, (rows, counts)
            assert before == after
            tell(f"replayed, {kills} killed: {PARTITIONS} partitions the same, in order")


if __name__ == "__main__":
    main()
