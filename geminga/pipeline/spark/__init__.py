"""Spark around the kernels: the data source `pulsar`, jobs, and the session. Only these modules import pyspark."""
