"""Files by URL: on this machine, S3, HDFS, Azure, Google Cloud, or any file system that fsspec knows.

`parse` (`locations.py`, pure) splits a path or URL, and `s3_arguments` converts Hadoop's settings of S3
(`fs.s3a.*`) to pyarrow's. `Files` (`files.py`) opens, lists, writes and deletes by URL through `pyarrow.fs`.
It is sent to workers by pickle, with its settings and without its connections, so that the driver, a task and
a process without Spark access a file in the same way: Python workers have no JVM, and no Hadoop jar is needed
(except for HDFS, which pyarrow accesses through Hadoop's client).

Must not be broken: a file gets its name only when it is complete, on every file system; errors are
`StorageError` or `NotThere`, name the URL, and say what to set; no `repr` and no error has credentials. Not
every file system can rename: check `can_rename`, and list the files in a manifest if it is false.
"""
