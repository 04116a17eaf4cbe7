"""How a command line becomes values: the parser, flags that commands share, exit codes.

A command gets the class `Parser` (`parser.py`) and its arguments from `cli/main.py`, adds its flags, and
calls `parse_strictly`: no abbreviations, errors in one line, and for an unknown flag the one that was
probably meant. `options.py` has the flags that several commands share and the values they take; `ports.py`
says which process holds a port, `data_directory.py` where data goes by default, `positions.py` where in a
topic to begin. `guesses.py` says what was probably meant by a word that is none of ours. Read `parser.py`
first.

Exit codes are an interface that scripts rely on: 0 done, 1 failed, 2 wrong usage, 3 nothing to receive, 130
interrupted, 141 output closed. A new one is a new line in `parser.py`, never a number in a command.

It stands below the commands and above the small client only, so that every command may use it and it knows no
command. The moment that start-up is counted from (`STARTED_S`) is taken in `parser.py`, the first module of
ours that a command imports. Nothing here talks to a broker; nothing heavy is imported, as `--help` pays for
it.
"""
