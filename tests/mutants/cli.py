"""Mutants of `geminga/cli/`: what the broker says must not hold it up, nor vanish without a count."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OUTPUT = "geminga/cli/output_thread.py"
LOG = "geminga/cli/broker_log.py"
STANDALONE = "geminga/cli/standalone.py"
THREAD = "tests/cli/test_output_thread.py::"
STREAMS = "tests/cli/test_standard_streams.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "errors-of-workers-without-options",
        "geminga/pipeline/spark/failures.py",
        '        if "".join(map(str, parts)) == text:\n',
        "        if False:\n",
        ("tests/pipeline/spark/test_pipeline_cli.py::test_an_error_of_a_worker_keeps_its_options",),
        "that the command line names its flags also for what a worker of Spark raised",
    ),
    Mutant(
        "output-queue-without-bound",
        OUTPUT,
        "        while self._queued_bytes > self._bytes_max:\n",
        "        while False:\n",
        (THREAD + "test_an_unread_pipe_holds_up_nothing_and_keeps_the_newest_lines",),
        "the bound of what waits for a reader",
    ),
    Mutant(
        "output-newest-dropped",
        OUTPUT,
        "            oldest = self._queue.popleft()\n",
        "            oldest = self._queue.pop()\n",
        (THREAD + "test_an_unread_pipe_holds_up_nothing_and_keeps_the_newest_lines",),
        "that the lines which say why a process ends are the last to go",
    ),
    Mutant(
        "output-count-forgotten-with-the-notice",
        OUTPUT,
        "                    if written < len(notice):\n                        self._untold += untold\n",
        "",
        (THREAD + "test_a_notice_that_cannot_be_written_is_told_later",),
        "the count of a notice that could not be written itself",
    ),
    Mutant(
        "output-thread-holds-up-the-exit",
        OUTPUT,
        "daemon=True",
        "daemon=False",
        (STREAMS + "test_a_log_that_nobody_reads_holds_up_nobody_and_is_counted",),
        "that a thread which hangs in a write does not hold up the end",
    ),
    Mutant(
        "log-storage-warnings-collapse",
        LOG,
        "    if record.name not in COLLAPSED_LOGGERS:\n        return None\n",
        "",
        (
            "tests/cli/test_broker_log.py::test_what_names_lost_messages_or_happens_by_itself_is_never_left_out",
        ),
        "that each warning of the storage is written",
    ),
    Mutant(
        "sighup-although-nohup",
        STANDALONE,
        " and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN",
        "",
        (STREAMS + "test_nohup_is_respected",),
        "that nohup keeps a broker running",
    ),
)
