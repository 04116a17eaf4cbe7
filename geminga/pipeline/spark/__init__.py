"""Spark around the kernels: data source, jobs, session. Only these modules import pyspark."""
