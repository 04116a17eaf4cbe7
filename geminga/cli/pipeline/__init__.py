"""`geminga pipeline`: audit, export, replay, rescue, rebuild and capacity, on Spark or in this process; and
`package`, an archive for a cluster's workers.

`run` in `pipeline.py` finds the command and turns the errors of `pipeline` into one line in which options are
named as flags. Each command parses, asks for a session if it needs one (`spark.py`; `--master none` works
without Spark where a command offers it), calls the kernels or `pipeline/spark`, and shows the result.
`rebuild.py` also opens one topic of a stopped broker (`stopped_topic.py`) as the broker itself would, to load
buckets into its storage. Read `pipeline.py`, then `audit.py`.

Thin on purpose: everything that a command does is a function in `geminga.pipeline` as well, for notebooks and
jobs. What can be refused is refused before a session starts, which takes seconds.

Must not be broken: exit code 0 all is well, 1 something was found or could not be done, 2 wrong usage; an
output directory appears under its name only when it is whole (`WholeDirectory`); the lock of a data directory
is held while it is read (a rescue reads one that cannot be locked all the same). Needs the extra
`geminga[spark]`, hence no import of pyarrow or pyspark before a command asks for it. Arithmetic belongs to
`pipeline`.
"""
