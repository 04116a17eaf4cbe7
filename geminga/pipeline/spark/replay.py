"""An export back into topics on Spark: partitions of topics side by side. docs/pipeline-export.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from geminga.pipeline.columns.columns import TOPIC
from geminga.pipeline.export.manifest import Manifest
from geminga.pipeline.export.output import load, local_path
from geminga.pipeline.export.plan import FILE_COLUMNS, verify, whole_topic
from geminga.pipeline.export.replay_lane import Delivery, LaneSettings
from geminga.pipeline.export.replay_targets import Wanted, prepare
from geminga.pipeline.export.replaying import DONE, ORDER, Job, replay_rows
from geminga.pipeline.spark.jobs import Progress, Session, for_each, in_words, session_of, watched
from geminga.pipeline.spark.pieces import spark_schema
from geminga.pipeline.topics.options import parse_options

_SEND_TIMEOUT_MS = "20000"


@dataclass(frozen=True)
class Replayed:
    """What became of each partition: the columns of `replaying.DONE`."""

    table: pa.Table

    @property
    def rows(self) -> int:
        return sum(self.table.column("rows").to_pylist())

    @property
    def skipped(self) -> int:
        """That an earlier attempt had sent."""
        return sum(self.table.column("skipped").to_pylist())

    @property
    def exactly_once(self) -> bool:
        """Every broker involved deduplicates: a repeated attempt stored nothing twice."""
        return all(self.table.column("deduplicates").to_pylist())


def replay(
    spark: Session,
    directory: str,
    options: Mapping[str, str],
    *,
    rename: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    namespace: str | None = None,
    subscriptions: Iterable[str] = (),
    delivery: str = Delivery.AUTO,
    shift_ms: int = 0,
    batch_rows: int = 0,
    rate: float | None = None,
    by_key: bool = False,
    append: bool = False,
    schemas: bool = True,
    name: str | None = None,
    progress: Progress = lambda text: None,
) -> Replayed:
    """Send every message of an export again, to topics of the same names unless told otherwise.

    `options`: service.url, admin.url, compression, pendingMax, sendTimeoutMs, pulsar.client.*. Order is kept
    for each partition, and so for each key. `rate`: messages a second, all together. `name`: what producers
    are named after; the same name continues an earlier replay where the broker deduplicates. All files are
    checked before anything is sent; on return all is durable. Raises `PipelineError`, `CorruptData`.
    """
    path = local_path(directory)
    manifest = load(path)
    known = parse_options({"sendTimeoutMs": _SEND_TIMEOUT_MS} | dict(options))
    wanted = Wanted(
        known.access,
        known.admin_url,
        dict(rename or {}),
        tuple(only),
        namespace,
        tuple(subscriptions),
        by_key,
        append,
        schemas,
    )
    _verify(spark, path, manifest, progress)
    prefix = name or f"replay-{manifest.export_id}" + (f"-{shift_ms}" if shift_ms else "")
    targets = prepare(manifest, wanted, prefix)
    parts = [part for part in manifest.rows_by_topic() if whole_topic(part) in targets]
    if not parts:
        return Replayed(DONE.empty_table())
    session = session_of(spark)
    side_by_side = min(len(parts), session.sparkContext.defaultParallelism)
    job = Job(
        known.access,
        targets,
        prefix,
        LaneSettings(Delivery(delivery), known.compression, batch_rows, shift_ms),
        None if rate is None else rate / side_by_side,
        known.pending_max,
        known.send_timeout_s,
    )
    progress(f"{len(parts)} partitions to send to {known.access.service_url}")
    with watched(session, "sending", progress):
        return Replayed(_send(_sorted(session, path, manifest, parts), job))


def _verify(spark: Session, path: str, manifest: Manifest, progress: Progress) -> None:
    files = manifest.files
    progress(f"checking {len(files)} files, {sum(file.size_bytes for file in files):,} bytes")
    for_each(spark, files, [file.size_bytes for file in files], partial(verify, path))


def _sorted(spark: SparkSession, path: str, manifest: Manifest, parts: list[str]) -> DataFrame:
    """A task's share is whole partitions of topics, in the order of the topic."""
    wanted = set(parts)
    files = [f"file://{path}/{file.path}" for file in manifest.files if wanted & file.topics.keys()]
    frame = spark.read.schema(spark_schema(FILE_COLUMNS)).parquet(*files)
    number = F.create_map(*(F.lit(one) for pair in enumerate(parts) for one in reversed(pair)))
    lane = number[F.col(TOPIC)]
    frame = frame.filter(lane.isNotNull()).repartitionById(len(parts), lane.cast("int"))
    return frame.sortWithinPartitions(*ORDER)


def _send(frame: DataFrame, job: Job) -> pa.Table:
    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from replay_rows(job, batches)

    done = frame.mapInArrow(send, spark_schema(DONE))
    return in_words(lambda: done.toArrow()).sort_by([("source", "ascending"), ("target", "ascending")])
