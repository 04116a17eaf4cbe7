"""An export back into topics on Spark: partitions of topics side by side. docs/pipeline-export.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminga.pipeline.export import replay as kernel
from geminga.pipeline.export.replay import Replayed
from geminga.pipeline.export.workers import Progress
from geminga.pipeline.spark.jobs import OnSpark, Session, with_settings


def replay(
    spark: Session,
    directory: str,
    options: Mapping[str, str],
    *,
    progress: Progress = lambda text: None,
    **choices: Any,
) -> Replayed:
    """Send every message of an export again, to topics of the same names unless told otherwise.

    `spark`: a session, or what starts one when it is needed. `choices` and all else are those of
    `export.replay.replay`; settings of file systems that `options` do not give are those of the session
    (spark.hadoop.fs.s3a.*).
    """
    given = with_settings(spark, directory, options)
    workers = OnSpark(spark, progress)
    return kernel.replay(directory, given, workers=workers, progress=progress, **choices)
