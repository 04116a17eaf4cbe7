"""Topics to Parquet on Spark: ranges of partitions side by side. docs/pipeline-export.md."""

from __future__ import annotations

from collections.abc import Mapping

from geminga.pipeline.export.exporting import Exported, export
from geminga.pipeline.export.workers import Progress
from geminga.pipeline.spark.jobs import OnSpark, Session, with_settings


def export_topics(
    spark: Session,
    directory: str,
    options: Mapping[str, str],
    *,
    resume: bool = False,
    progress: Progress = lambda text: None,
) -> Exported:
    """Write every message that is stored now, with all its metadata, as Parquet below `directory`.

    `spark`: a session, or what starts one when it is needed. All else is as in `export.exporting.export`;
    settings of file systems that `options` do not give are those of the session (spark.hadoop.fs.s3a.*).
    """
    given = with_settings(spark, directory, options)
    workers = OnSpark(spark, progress)
    return export(directory, given, resume=resume, workers=workers, progress=progress)
