"""`geminga bookie`: a stopped broker's storage, seen with one's own eyes. Offline: it takes the directory's
lock, so no broker can run meanwhile. Only `rebuild-index`, `unrecorded` and `release` write more than the
process id in the lock's file.

Exit codes: 0 all is well, 1 something is damaged or missing, 2 wrong usage, 4 the data directory cannot be
used, be it that a broker runs on it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser

EXIT_DATA_DIRECTORY = 4

COMMANDS = {
    "ledgers": ("lists", "list ledgers: topic, entries, bytes, entry logs, state"),
    "entry-logs": ("lists", "list entry logs: ledgers, bytes, how much of them lives"),
    "journals": ("lists", "list journals, and from where on a start would replay them"),
    "dump-log": ("dumps", "print every record and the footer of an entry log"),
    "dump-journal": ("dumps", "print every group of a journal"),
    "entry": ("dumps", "show one entry: where it lies, its bytes, its message metadata"),
    "unrecorded": ("unrecorded", "ledgers without a record: list, set-aside, restore, delete"),
    "verify": ("repair", "check every checksum, and the index against the entry logs"),
    "rebuild-index": ("repair", "put the index aside; make a new one from entry logs and journals"),
    "release": ("repair", "after a mismatch of files: let the broker delete old entry logs again"),
}
"""Which module has which command."""


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """One of the commands; returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK if arguments else EXIT_USAGE
    name = arguments[0]
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        print(
            f"geminga bookie: unknown command {name!r}.{hint} Try 'geminga bookie --help'.", file=sys.stderr
        )
        return EXIT_USAGE
    from geminga.cli.arguments.access import reading_advice
    from geminga.cli.bookie.directory import NoDirectory
    from geminga.errors import GemingaError

    module, text = COMMANDS[name]
    parser = kind(prog=f"geminga bookie {name}", description=text[:1].upper() + text[1:] + ".")
    try:
        code: int = importlib.import_module(f"geminga.cli.bookie.{module}").COMMANDS[name](
            parser, arguments[1:]
        )
    except NoDirectory as error:
        print(f"geminga bookie: {error}", file=sys.stderr)
        return EXIT_DATA_DIRECTORY
    except GemingaError as error:
        print(f"geminga bookie: {error}", file=sys.stderr)
        hints = reading_advice(error.__cause__)
        for hint in hints:
            print(hint, file=sys.stderr)
        return EXIT_DATA_DIRECTORY if hints else EXIT_FAILED
    return code


def usage() -> str:
    return "\n".join(
        [
            "usage: geminga bookie COMMAND [FLAGS]",
            "",
            "Looks into a stopped broker's storage. docs/formats/ describes its files.",
            "",
            *(f"  {name:15}{text}" for name, (_, text) in COMMANDS.items()),
            "",
            "'geminga bookie COMMAND --help' lists the flags of a command.",
        ]
    )
