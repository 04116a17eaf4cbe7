"""Files wherever a URL says: on this machine, S3, HDFS, Azure, Google Cloud, or what fsspec knows.

`parse` (`locations.py`, pure) takes a path or URL apart, and `s3_arguments` turns Hadoop's settings of S3
(`fs.s3a.*`) into pyarrow's. `Files` (`files.py`) opens, lists, writes and deletes by URL through
`pyarrow.fs`. It travels to workers by pickle, with its settings and without its connections, so that the
driver, a task and a process without Spark reach a file in the same way: Python workers have no JVM, and no
jar of Hadoop's has to be there (but for HDFS, which pyarrow reaches through Hadoop's client).

Must not be broken: a file that is written has its name only when it is whole, on every file system; errors
are `StorageError` or `NotThere`, name the URL, and say what to set; no `repr` and no error has credentials.
No rename is promised: ask `can_rename`, and name files in a manifest where it says no.
"""
