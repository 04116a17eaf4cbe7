"""Scans of tables and views: what Spark asks for in each query reaches the reader.

Spark keeps the plan of a Python data source with the relation, not with the scan: a view would be frozen at
its first query, and the filters of one query would hold for the next. `provider.py` has the driver compile
`DefaultSource.java`, which gives each scan a Python source of its own with the options of its table;
`pushdown.py` turns the filters that Spark pushes into conditions of `pipeline/topics/pruning.py`.

What cannot compile it (Spark Connect, an incompatible Spark) gets a warning and the plain data source, which
reads everything. Only modules of `pipeline/spark/` import this package.
"""
