"""Topics as Arrow record batches, without Spark.

`read_topic` (`reading.py`) plans like a batch query of the data source. It reads the splits one after the
other, in the caller's thread, and returns a `TopicReader` (`topic_reader.py`), which pandas, Polars, DuckDB
and pyarrow accept as they do a `RecordBatchReader`. `table.py` decides which columns a topic has and makes
the batches of one range; Spark's data source calls the same functions, so both return the same columns.

Must not be broken: nothing here imports pyspark; batches are made on demand, so memory does not grow with the
topic; a reader that is closed or at its end leaves no subscription behind.
"""
