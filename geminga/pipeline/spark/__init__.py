"""Spark around the kernels: data source, jobs, session. Only these modules import pyspark."""

from geminga.pipeline.spark.session import make_session, register

__all__ = ["make_session", "register"]
