"""Pulsar topics as DataFrames, delivery audits, and bulk work on the delayed index, on Spark through PySpark.

Two layers. Kernels (numpy, pyarrow, pyroaring) never import Spark and hold all arithmetic; the modules in
`geminga.pipeline.spark` put Spark around them. Needs the extra `geminga[spark]`. Works against Geminga and
any other Pulsar broker alike; what reads files needs no broker at all.
"""
