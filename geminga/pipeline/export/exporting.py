"""Topics to Parquet: ranges of partitions, wherever the workers are. docs/pipeline-export.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from geminga.clock import RealClock
from geminga.pipeline.errors import BadOption, Option
from geminga.pipeline.export.manifest import ExportedFile, Manifest, Run
from geminga.pipeline.export.output import Output
from geminga.pipeline.export.plan import exported_batches, plan_export
from geminga.pipeline.export.range_files import write_range
from geminga.pipeline.export.workers import Here, Progress, Workers
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import without_settings
from geminga.pipeline.topics.options import Options, TopicChoice, parse_options
from geminga.pipeline.topics.planning import narrowed
from geminga.pipeline.topics.ranges import Range

_RESUME: Final = Option("resume", "True")
_BY_FILTER: Final = (
    "an export has all messages that are stored. Filter when you read the files, for example "
    "spark.read.parquet(DIR).where(\"__publishTime >= '2026-11-22'\"); what has been stored since the last "
    "run is exported with ",
    _RESUME,
)
_OF_STREAMS: Final = (
    "it is for streams. An export has all messages that are stored and acknowledges none; what has been "
    "stored since the last run is exported with ",
    _RESUME,
)
_OF_VALUES: Final = (
    "an export has values as bytes. Set it where the messages are read as columns; a replay sends the bytes",
)
_OF_COLUMNS: Final = ("an export has all columns of metadata. Choose columns when you read the files",)
_REFUSED: Final[Mapping[str, tuple[str | Option, ...]]] = {
    **dict.fromkeys(
        (
            "startingOffsets",
            "endingOffsets",
            "startingTime",
            "endingTime",
            "startingOffsetsByTimestampStrategy",
            "publishTimesApartMs",
        ),
        _BY_FILTER,
    ),
    **dict.fromkeys(
        (
            "predefinedSubscription",
            "maxBytesPerTrigger",
            "maxRowsPerTrigger",
            "exactRowsPerTrigger",
            "minRowsPerTrigger",
            "maxTriggerDelay",
        ),
        _OF_STREAMS,
    ),
    **dict.fromkeys(
        (
            "rawValue",
            "mode",
            "columnNameOfCorruptRecord",
            "outOfRangeTimes",
        ),
        _OF_VALUES,
    ),
    **dict.fromkeys(("columns", "includeHeaders"), _OF_COLUMNS),
}
"""Options of the data source that change what a query reads, or how: an export without them would not be
what the user meant.
"""
_AS_EXPORTED: Final = {"startingoffsets": "earliest", "endingoffsets": "latest", "rawvalue": "true"}
"""What an export does anyway."""


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


def export(
    directory: str,
    options: Mapping[str, str],
    *,
    resume: bool = False,
    workers: Workers | None = None,
    progress: Progress = lambda text: None,
) -> Exported:
    """Write every message that is stored now, with all its metadata, as Parquet below `directory`.

    `directory`: a path, or a URL such as s3a://BUCKET/PATH. `options` are those of the data source:
    service.url, topic, topics or topicsPattern, failOnDataLoss and so on, but not those that choose messages
    or columns; and settings of file systems (fs.s3a.endpoint). `resume`: go on where the last run ended,
    with its topics if none is named. `workers`: none means this process. On return all of it is durable. If
    it fails or is killed, nothing of it counts: no manifest names its files. Raises `PipelineError`,
    `StorageError`.
    """
    given, settings = without_settings(options)
    known, files = parse_options(given), Files(settings)
    _check(given)
    workers = workers or Here(progress)
    with Output(files, directory, resume=resume) as output:
        if known.topics is None and output.manifest.topics:
            known = replace(known, topics=TopicChoice(names=tuple(output.manifest.topics)))
        plan = plan_export(known, output.manifest.topics)
        progress(f"{len(plan.topics)} topics, {len(plan.ranges)} parts to read")
        work = partial(_write, files, output.staged, narrowed(known))
        written = workers.run("reading", list(enumerate(plan.ranges)), work)
        found = [
            replace(file, path=f"{output.run.directory}/{file.path}") for some in written for file in some
        ]
        progress(f"{len(found)} files written")
        run = Run(output.run.number, RealClock().now_ms(), tuple(sorted(found, key=lambda file: file.path)))
        before = output.manifest
        output.commit(Manifest(before.export_id, plan.topics, (*before.runs, run)))
        return Exported(output.manifest, run)


def _check(given: Mapping[str, str]) -> None:
    options = {name.lower(): value for name, value in given.items()}
    for name, why in _REFUSED.items():
        value = options.get(name.lower())
        if value is not None and value.lower() != _AS_EXPORTED.get(name.lower()):
            raise BadOption(f"option {name} has no effect on an export: ", *why)


def _write(files: Files, directory: str, options: Options, item: tuple[int, Range]) -> list[ExportedFile]:
    number, wanted = item
    return write_range(files, directory, number, exported_batches(options, wanted))
