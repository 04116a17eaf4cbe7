"""What a command shows: tables for people, JSON for programs, numbers with units, progress.

A command that lists things makes a list of plain mappings (what `--json` prints as it is) and a tuple of
`Column`s, and hands both to `show_rows` (`output.py`). On a terminal the table fits its width: the widest
texts are cut with an ellipsis first, then the least important columns go. Into a pipe or a file goes the
whole table, without colours, so that `grep` and `awk` find what they look for. Read `table.py` first.

`text.py` measures and cuts text as a terminal shows it, and escapes control characters: names and payloads
are written by clients, and a terminal that got them as they are would obey them. `numbers.py` has rates,
bytes and ages as a person reads them, `progress.py` a line on standard error for what takes longer than a
second.

A few lines of our own and no library: the ones that draw tables take as long to import as all of
`geminga --help` may take, and would be a dependency of the broker. Must not be broken: no control character
from outside reaches a terminal; nothing is cut unless standard output is a terminal; `--json` prints numbers
as numbers and adds no words.
"""
