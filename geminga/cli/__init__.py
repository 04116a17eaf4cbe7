"""The command line: `geminga standalone`, and the groups of commands in the folders below.

`main` in `main.py` looks the command up in `COMMANDS` and imports its module, whose `run(arguments)` returns
the exit code. `standalone.py` reads the configuration, runs `server.serve` and prints one line of JSON when
both ports answer; `output_thread.py` and `broker_log.py` see to it that nothing which it says holds it up;
`messages/` has produce, consume, read and peek, on the small client of `cli/client`; `arguments/` has the
parser and the flags that commands share. Read `main.py` first, then `standalone.py`.

Modules are imported when they are asked for, so that `--help` is quick and the broker's start-up does not pay
for numpy, Spark or plots. Names and flags are pulsar-admin's where there is a counterpart. There is no
abbreviation of flags: a script that works today must not become ambiguous with the next flag.

Must not be broken: exit codes (0, 1, 2, and those of `standalone`), since scripts read them; errors are one
line that says what to do, never a traceback; standard output carries data, standard error everything else; a
closed pipe and Ctrl-C end quietly. A command parses, calls and prints. What it calls belongs to the rooms
below.
"""
