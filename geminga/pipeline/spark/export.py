"""Topics to Parquet on Spark: ranges of partitions side by side. docs/pipeline-export.md."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from geminga.clock import RealClock
from geminga.pipeline.export.manifest import Manifest, Run
from geminga.pipeline.export.output import Output, local_path
from geminga.pipeline.export.plan import (
    EXPORTED,
    PUBLISH_DATE,
    PUBLISH_HOUR,
    exported_batches,
    inspect,
    plan_export,
)
from geminga.pipeline.spark.jobs import Progress, Session, configured, for_each, in_words, session_of, watched
from geminga.pipeline.spark.pieces import each
from geminga.pipeline.topics.options import Options, TopicChoice, parse_options
from geminga.pipeline.topics.planning import narrowed
from geminga.pipeline.topics.reading import Range

_FILE_ROWS_MAX = 2_000_000
_TIMES_AS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


@dataclass(frozen=True)
class Exported:
    """What one run added, and the whole."""

    manifest: Manifest
    run: Run

    @property
    def rows(self) -> int:
        return self.run.rows

    @property
    def files(self) -> int:
        return len(self.run.files)

    @property
    def by_topic(self) -> dict[str, int]:
        """Rows of each partition."""
        return replace(self.manifest, runs=(self.run,)).rows_by_topic()


def export_topics(
    spark: Session,
    directory: str,
    options: Mapping[str, str],
    *,
    resume: bool = False,
    progress: Progress = lambda text: None,
) -> Exported:
    """Write every message that is stored now, with all its metadata, as Parquet below `directory`.

    `spark`: a session, or what starts one when it is needed. `options` are those of the data source:
    service.url, topic, topics or topicsPattern, failOnDataLoss and so on. `resume`: go on where the last run
    ended, with its topics if none is named. On return all of it is durable. If it fails or is killed, nothing
    of it counts: a new directory does not get its name, an old manifest names no new files. Raises
    `PipelineError`, `StorageError`.
    """
    known = parse_options(options)
    path = local_path(directory)
    with Output(path, resume=resume) as output:
        if known.topics is None and output.manifest.topics:
            known = replace(known, topics=TopicChoice(names=tuple(output.manifest.topics)))
        plan = plan_export(known, output.manifest.topics)
        progress(f"{len(plan.topics)} topics, {len(plan.ranges)} parts to read")
        if plan.ranges:
            session = session_of(spark)
            with watched(session, "reading", progress):
                _write(session, plan.ranges, narrowed(known), output.staged)
        paths = output.paths() if plan.ranges else []
        progress(f"{len(paths)} files written; reading them again")
        sizes = [os.path.getsize(os.path.join(output.staged, one)) for one in paths]
        files = for_each(spark, paths, sizes, partial(inspect, output.staged))
        run = replace(output.run, at_ms=RealClock().now_ms())
        files = [replace(file, path=f"{run.directory}/{file.path}") for file in files]
        run = Run(run.number, run.at_ms, tuple(sorted(files, key=lambda file: file.path)))
        before = output.manifest
        output.commit(Manifest(before.export_id, plan.topics, (*before.runs, run)))
        return Exported(output.manifest, run)


def _write(spark: SparkSession, ranges: tuple[Range, ...], options: Options, path: str) -> None:
    def read(_: int, wanted: Range) -> Iterator[pa.RecordBatch]:
        yield from exported_batches(options, wanted)

    frame = each(spark, ranges, read, EXPORTED)
    writer = frame.write.partitionBy(PUBLISH_DATE, PUBLISH_HOUR).mode("error")
    writer = writer.option("compression", "zstd").option("maxRecordsPerFile", str(_FILE_ROWS_MAX))
    with configured(spark, _TIMES_AS):
        in_words(lambda: writer.parquet(f"file://{path}"))
