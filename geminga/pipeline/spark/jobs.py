"""Jobs that take a while: how far they are, and what went wrong in words."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from geminga.limits import MIB
from geminga.pipeline.spark.failures import failure_of
from geminga.pipeline.spark.pieces import collect_each, started
from geminga.pipeline.spark.session import find_java

S = TypeVar("S")
T = TypeVar("T")
Progress = Callable[[str], None]
Session: TypeAlias = SparkSession | Callable[[], SparkSession]
"""A session, or what starts one."""

PROGRESS_SECONDS: Final = 2.0
HERE_BYTES_MAX: Final = 64 * MIB
HERE_ITEMS_MAX: Final = 1000


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
    """The session itself, started if it was not."""
    return spark() if callable(spark) else spark


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


def for_each(spark: Session, items: Sequence[S], sizes: Iterable[int], work: Callable[[S], T]) -> list[T]:
    """What `work` makes of each, in no order: on workers if it is much, else here, where no job has to start.

    Raises what `work` raises, or a `PipelineError` with its words.
    """
    if sum(sizes) <= HERE_BYTES_MAX and len(items) <= HERE_ITEMS_MAX:
        return [work(item) for item in items]

    def one(_: int, item: S) -> T:
        return work(item)

    return in_words(lambda: collect_each(session_of(spark), items, one))


def in_words(action: Callable[[], T]) -> T:
    """What an action returns. What Spark raises becomes an error of ours: as it was said in a worker, of
    others the innermost cause.
    """
    try:
        return action()
    except (PySparkException, Py4JJavaError) as error:
        raise failure_of(error) from None


@contextlib.contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings, and as it was before afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
