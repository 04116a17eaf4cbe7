"""Gives Spark's planner a data source `pulsar` whose scans do not share their plans.

Spark 4.1 to 4.3 keep the plan of a Python data source with the relation, not with the scan: the second query
on a view or DataFrame reads what the first one found, and where filters are pushed, reads with the filters of
another scan. A class for the JVM, `DefaultSource.java` beside this file, wraps the Python data source: a new
one for each scan, with the options of a catalog's table, which Spark loses too, and with the columns that are
asked for. Spark finds it before the Python source of that name. Janino, the compiler that Spark brings along
for its own generated code, compiles it in the driver, in less than a second; executors do not need it.
"""

from __future__ import annotations

import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.udf import _wrap_function

PUSHES_FILTERS: Final = "pushesFilters"
"""An option that only the class sets, with filters: the scan has a Python data source of its own."""
_CLASS: Final = "pulsar.DefaultSource"
_SOURCE: Final = Path(__file__).with_name("DefaultSource.java")


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """As `spark.dataSource.register`, in each session of the JVM: that method refuses a name that a class
    has, and so each session (`newSession`, or after `stop`) but the first, because of `install`.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or not _has(_loader(jvm)):
        spark.dataSource.register(source)
        return
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource
    wrapped = python(_wrap_function(spark.sparkContext, source))
    spark._jsparkSession.sessionState().dataSourceManager().registerDataSource(source.name(), wrapped)


def install(spark: SparkSession) -> bool:
    """Once for each JVM. False, and a warning, where it is not possible: Spark Connect has no JVM here, and a
    later Spark may have other classes. Then the Python data source works alone, as Spark plans it.
    """
    try:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise _NoJvm("there is no JVM in this process")
        loader = _loader(jvm)
        if not _has(loader):
            _add(jvm, loader, _compiled(jvm, loader))
    except (Py4JError, _NoJvm) as error:
        said = str(error).partition("\n\tat ")[0].replace("\n", " ")
        warnings.warn(
            "data source pulsar: a view or DataFrame keeps the plan of its first query, filters and columns "
            "are not pushed down, and tables of CREATE TABLE lose their options, so create temporary views "
            f"({said})",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True


class _NoJvm(Exception):
    """Nothing to compile for."""


def _loader(jvm: Any) -> Any:
    return jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()


def _has(loader: Any) -> bool:
    try:
        loader.loadClass(_CLASS)
    except Py4JError:
        return False
    return True


def _compiled(jvm: Any, loader: Any) -> dict[str, bytes]:
    """Name of the class -> its bytes."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text())
    codes = compiler.getBytecodes()
    return {str(name): bytes(codes[name]) for name in codes}


def _add(jvm: Any, loader: Any, classes: dict[str, bytes]) -> None:
    """To the loader that all sessions of the driver look into. Raises `Py4JError` if it takes no more."""
    with tempfile.TemporaryDirectory(prefix="geminga-spark-") as folder:
        at = Path(folder, "pulsar.jar")
        with zipfile.ZipFile(at, "w") as jar:
            for name, code in classes.items():
                jar.writestr(name.replace(".", "/") + ".class", code)
        loader.addURL(jvm.java.io.File(str(at)).toURI().toURL())
        for name in classes:
            loader.loadClass(name)  # the file is not needed any more then
