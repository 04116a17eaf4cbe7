"""`geminga pipeline`: bulk work on topics, logs and files, on Spark or without it. Needs the extra
`geminga[spark]`.

Exit codes: 0 all is well, 1 something was found wrong or could not be done, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, Parser

if TYPE_CHECKING:
    from geminga.errors import GemingaError

COMMANDS = {
    "audit": ("audit", "tell from logs what was lost, came twice, out of order, early or late"),
    "capacity": (
        "capacity",
        "say how large an index of delayed messages gets, as a table and a plot",
    ),
    "rebuild": ("rebuild", "make, check or repair the buckets of a delayed index"),
    "export": ("export", "write topics to Parquet with everything that is known of each message"),
    "replay": ("replay", "send an export again, in order, to this broker or any other"),
    "package": ("package", "write what the workers of a cluster need into one archive"),
    "rescue": (
        "rescue",
        "read every entry that a stopped broker's files still hold, however broken",
    ),
}
"""Which module has which command."""
_FLAGS = {
    "service.url": "--url",
    "admin.url": "--admin-url",
    "resume": "--continue",
    "by_key": "--by-key",
    "append": "--append",
    "schemas": "--no-schemas",
}
"""The data source's options, and arguments in Python, that have a flag here; other options are given with
--option.
"""
_FLAGS_OF = {"export": {"topicsPattern": "--topics-pattern", "failOnDataLoss": "--allow-loss"}}
"""Those that only one command has."""
_VERBS = {"": "", "set": "give ", "Set": "Give "}


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
            f"geminga pipeline: unknown command {name!r}.{hint} Try 'geminga pipeline --help'.",
            file=sys.stderr,
        )
        return EXIT_USAGE
    from geminga.errors import GemingaError

    module, text = COMMANDS[name]
    logging.getLogger().addFilter(_is_no_interruption)
    parser = kind(prog=f"geminga pipeline {name}", description=text[:1].upper() + text[1:] + ".")
    try:
        code: int = importlib.import_module(f"geminga.cli.pipeline.{module}").run(parser, arguments[1:])
    except GemingaError as error:
        print(f"geminga pipeline {name}: {in_flags(name, error)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"geminga pipeline {name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyarrow", "pyspark", "matplotlib"):
            raise
        extra = "plot" if error.name == "matplotlib" else "spark"
        print(
            f"geminga pipeline {name}: {error.name} is not installed; install the extra {extra} of this "
            f"package (in a checkout: pip install '.[{extra}]')",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return code


def in_flags(command: str, error: GemingaError) -> str:
    """The text of an error, with this command's flags for the options and arguments that it names."""
    from geminga.pipeline.errors import Option, PipelineError

    if not isinstance(error, PipelineError):
        return str(error)
    flags = _FLAGS | _FLAGS_OF.get(command, {})

    def flag(option: Option) -> str:
        if option.name in flags:
            return f"{_VERBS[option.verb]}{flags[option.name]}"
        if option.value is None:
            return option.name
        return f"{_VERBS[option.verb]}--option {option.name}={option.value}"

    return error.told_with(flag)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Py4J logs Ctrl-C as pages of tracebacks: not worth a line."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is None


def usage() -> str:
    return "\n".join(
        [
            "usage: geminga pipeline COMMAND [FLAGS]",
            "",
            "Bulk work on topics, delivery logs, delayed indexes and a stopped broker's files.",
            "",
            *(f"  {name:15}{text}" for name, (_, text) in COMMANDS.items()),
            "",
            "'geminga pipeline COMMAND --help' lists the flags of a command.",
        ]
    )
