"""Jobs that take a while: how far they are, and what went wrong in words."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from geminga.limits import MIB
from geminga.pipeline.export.workers import PROGRESS_SECONDS, Progress
from geminga.pipeline.files.locations import FILE, parse
from geminga.pipeline.spark.failures import failure_of
from geminga.pipeline.spark.pieces import check_runs_jobs, collect_each, cores_of, started
from geminga.pipeline.spark.session import find_java

S = TypeVar("S")
T = TypeVar("T")
Session: TypeAlias = SparkSession | Callable[[], SparkSession]
"""A session, or what starts one."""

HERE_BYTES_MAX: Final = 64 * MIB
HERE_ITEMS_MAX: Final = 1000
_SETTINGS: Final = ("fs.s3a.", "fs.azure.account.key.")
"""What names of settings begin with that `pipeline.files` knows."""


@contextlib.contextmanager
def session(master: str) -> Iterator[Callable[[], SparkSession]]:
    """Starts a session for one command when first called, so that what can be refused is refused at once.

    Its workers have this package too. Calling it raises `PipelineError` where there is no Java.
    """
    running: list[SparkSession] = []

    def start() -> SparkSession:
        if not running:
            find_java()
            running.append(started(master))
        return running[0]

    try:
        yield start
    finally:
        for spark in running:
            spark.stop()


def session_of(spark: Session) -> SparkSession:
    """The session itself, started if it was not. Raises `PipelineError` over Spark Connect."""
    found = spark() if callable(spark) else spark
    check_runs_jobs(found)
    return found


@contextlib.contextmanager
def watched(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """Tell now and then how many parts of the running jobs are done."""
    done = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        shown = ""
        while not done.wait(PROGRESS_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            texts = [f"{one.numCompletedTasks} of {one.numTasks} parts" for one in stages if one is not None]
            text = f"{what}: {', '.join(texts)}"
            if texts and text != shown and not done.is_set():
                progress(text)
                shown = text

    thread = threading.Thread(target=watch, name="geminga-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class OnSpark:
    """The workers of a Spark session, which is started once there is work for it."""

    def __init__(self, spark: Session, progress: Progress) -> None:
        self._spark = spark
        self._progress = progress

    def side_by_side(self) -> int:
        return cores_of(session_of(self._spark))

    def run(
        self, what: str, items: Sequence[S], work: Callable[[S], T], *, sizes: Sequence[int] | None = None
    ) -> list[T]:
        """Where it is little it is done here, as no job has to start for that."""
        is_little = sizes is not None and sum(sizes) <= HERE_BYTES_MAX and len(items) <= HERE_ITEMS_MAX
        if is_little or not items:
            return [work(item) for item in items]
        session = session_of(self._spark)
        with watched(session, what, self._progress):
            return in_words(lambda: collect_each(session, items, lambda _, item: work(item)))


def with_settings(spark: Session, url: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options, and before them the session's settings of file systems, where the URL is of one that has
    any: then a session that is not there yet is started.
    """
    if parse(url).scheme == FILE:
        return dict(options)
    return session_settings(session_of(spark)) | dict(options)


def session_settings(spark: SparkSession) -> dict[str, str]:
    """Of file systems, as the session's Hadoop has them (spark.hadoop.fs.s3a.*, core-site.xml)."""
    java: Any = spark.sparkContext._jsc
    found = java.hadoopConfiguration()
    settings = {
        f"{prefix}{name}": value
        for prefix in _SETTINGS
        for name, value in dict(found.getPropsWithPrefix(prefix)).items()
    }
    # Hadoop's own default is of servers at Amazon, and pyarrow knows by itself when to name buckets in paths.
    settings.pop("fs.s3a.path.style.access", None)
    return {name: value for name, value in settings.items() if value}


def in_words(action: Callable[[], T]) -> T:
    """What an action returns. What Spark raises becomes an error of ours: as it was said in a worker, of
    others the innermost cause.
    """
    try:
        return action()
    except (PySparkException, Py4JJavaError) as error:
        raise failure_of(error) from None
