"""Mutants of `geminga/cli/`: what the broker says must not hold it up, nor vanish without a count."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OUTPUT = "geminga/cli/output_thread.py"
LOG = "geminga/cli/broker_log.py"
STANDALONE = "geminga/cli/standalone.py"
THREAD = "tests/cli/test_output_thread.py::"
STREAMS = "tests/cli/test_standard_streams.py::"
MESSAGES = "tests/cli/messages/test_messages.py::"

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
        "geminga/cli/stopping.py",
        " and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN",
        "",
        (STREAMS + "test_nohup_is_respected",),
        "that nohup keeps a broker running",
    ),
    Mutant(
        "nothing-received-is-success",
        "geminga/cli/messages/consume.py",
        "    return EXIT_OK if printed and printed >= flags.count else EXIT_NOTHING\n",
        "    return EXIT_OK\n",
        (MESSAGES + "test_nothing_within_the_time_is_no_success",),
        "that a script can tell whether there was a message",
    ),
    Mutant(
        "json-of-a-verb-is-worded-for-people",
        "geminga/cli/verbs/rows/running.py",
        "    return answer if verb.show is None or flags.json else verb.show(answer, flags)\n",
        "    return answer if verb.show is None else verb.show(answer, flags)\n",
        ("tests/cli/verbs/test_every_verb.py::test_json_has_what_the_lines_for_people_have",),
        "that --json prints the answer, not pulsar-admin's wording of it",
    ),
    Mutant(
        "pulsar-perfs-window-is-a-number-of-messages",
        "geminga/cli/perf/pulsar_perf.py",
        "    in_window = int(flags.rate * flags.batch_time_window / 1000) if flags.rate else most\n",
        "    in_window = int(flags.batch_time_window)\n",
        ("tests/cli/perf/test_pulsar_perf.py::test_an_entry_has_the_messages_of_the_window",),
        "that pulsar-perf -b is a time",
    ),
    Mutant(
        "whole-batch-acknowledged-for-a-part",
        "geminga/cli/messages/receiving.py",
        "    if len(taken) == len(found):\n",
        "    if True:\n",
        (MESSAGES + "test_n_is_exact_within_a_batch_and_the_rest_comes_again",),
        "that of a batch only what was printed is acknowledged",
    ),
    Mutant(
        "peek-shows-what-is-acknowledged",
        "geminga/cli/messages/peek.py",
        "        is_acknowledged = self._acknowledged is not None and at in self._acknowledged\n",
        "        is_acknowledged = False\n",
        (MESSAGES + "test_peek_shows_what_a_subscription_has_not_acknowledged_and_moves_nothing",),
        "what a subscription has acknowledged",
    ),
    Mutant(
        "terminal-left-as-it-is",
        "geminga/cli/watch/terminal.py",
        "            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)\n",
        "            pass\n",
        ("tests/cli/watch/test_top_terminal.py",),
        "that a terminal is left as it was found",
    ),
    Mutant(
        "rows-without-escapes",
        "geminga/cli/show/table.py",
        "    return text.escaped(column.shown(value) if column.shown is not None else str(value))\n",
        "    return column.shown(value) if column.shown is not None else str(value)\n",
        ("tests/cli/show/test_table.py",),
        "that names which clients choose do not steer the terminal",
    ),
    Mutant(
        "copies-beyond-the-size",
        "geminga/cli/payloads/compression.py",
        "if len(found) != size_bytes:",
        "if False:",
        ("tests/cli/payloads/test_payloads.py",),
        "that a small payload cannot unpack to any size",
    ),
    Mutant(
        "no-effect-untold",
        "geminga/cli/admin/admin_http.py",
        '        if warning := answer.headers.get("Warning", ""):\n',
        '        if warning := "":\n',
        ("tests/cli/verbs/test_pulsar_words.py::test_what_has_no_effect_is_told",),
        "a setting without effect",
    ),
    Mutant(
        "shims-over-a-real-pulsar",
        "geminga/cli/pulsar.py",
        '    return not path.exists() or MARK in path.read_text(errors="replace")\n',
        "    return True\n",
        ("tests/cli/verbs/test_scripts.py::test_shims_do_not_replace_another_program",),
        "that another program's script is left alone",
    ),
    Mutant(
        "query-of-a-verb-forgotten",
        "geminga/cli/verbs/rows/running.py",
        "        query = {key: getattr(flags, name) for key, name in verb.query.items()}\n",
        "        query: dict[str, object] = {}\n",
        ("tests/cli/verbs/test_every_verb.py::test_each_line_does_what_it_does_with_a_real_pulsar",),
        "what flags put into the query",
    ),
)
