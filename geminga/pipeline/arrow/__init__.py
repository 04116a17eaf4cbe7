"""Topics as Arrow record batches, without Spark.

`read_topic` (`reading.py`) plans like a batch query of the data source and reads the splits one after the
other, in the caller's thread: what pandas, Polars, DuckDB and pyarrow take. `table.py` says which columns a
topic has and makes the batches of one range; Spark's data source calls the same functions, so both give the
same columns.

Must not be broken: nothing here imports pyspark; batches are made when they are asked for, so memory does not
grow with the topic; a reader that is closed or at its end leaves no subscription behind.
"""
