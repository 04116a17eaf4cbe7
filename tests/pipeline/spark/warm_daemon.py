"""Spark's Python daemon with the data source imported before it forks: a killed worker is replaced in
milliseconds of CPU, not in a second. Only for tests that kill many; `spark.python.daemon.module` names it.
"""

import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import geminga.pipeline.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()
