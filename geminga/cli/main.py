"""The `geminga` command. A subcommand's module is imported when it is asked for: `--help` is quick."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

STARTED_S = time.monotonic()
"""When the program's own code began; start-up is counted from here."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141
"""As the shell reports a program that a closed pipe ended."""

COMMANDS = {
    "standalone": "run a broker",
    "produce": "publish messages to a topic",
    "consume": "receive messages from a subscription",
    "perf": "measure rates and latencies of a broker",
    "delayed": "look into delayed messages, cancel or reschedule them",
    "namespaces": "list, create and delete namespaces, get and set their policies",
    "topicPolicies": "get and set policies of single topics",
    "topics": "list, create and delete topics, show statistics, manage subscriptions",
    "schemas": "show, upload and delete the schemas of topics, say what would fit",
    "memory": "show what a running broker's memory is used for",
    "pipeline": "bulk work on Spark: audit deliveries, plan an index, rescue a broken directory",
    "bookie": "look into a stopped broker's storage: list, dump, verify, rebuild the index",
}
MODULES = {
    "standalone": "standalone",
    "produce": "produce",
    "consume": "consume",
    "perf": "perf.perf",
    "delayed": "admin.delayed",
    "namespaces": "admin.namespaces",
    "topicPolicies": "admin.topic_policies",
    "topics": "admin.topics",
    "schemas": "admin.schemas",
    "memory": "admin.memory",
    "pipeline": "pipeline.pipeline",
    "bookie": "bookie.bookie",
}
"""Where each command's `run` is, below `geminga.cli`."""


class Parser(argparse.ArgumentParser):
    """No abbreviations, errors in one line, and for an unknown flag the one that was probably meant."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)

    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(self._with_negative_values(arguments))
        if unknown:
            self.error(self._explain(unknown))
        return parsed

    def _with_negative_values(self, arguments: Sequence[str]) -> list[str]:
        """`--delay -5s` as `--delay=-5s`, so that the value is refused and not taken for a flag."""
        joined: list[str] = []
        for given in arguments:
            action = self._option_string_actions.get(joined[-1]) if joined else None
            if given[:1] == "-" and given[1:2].isdigit() and action is not None and action.nargs != 0:
                joined[-1] += given if len(joined[-1]) == 2 else f"={given}"
            else:
                joined.append(given)
        return joined

    def _explain(self, unknown: Sequence[str]) -> str:
        import difflib

        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        texts = []
        for given in unknown:
            near = difflib.get_close_matches(given.partition("=")[0], flags, n=1)
            if given.startswith("-"):
                texts.append(f"unknown flag {given}" + (f" (did you mean {near[0]}?)" if near else ""))
            else:
                texts.append(f"unexpected argument {given!r}")
        return ", ".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output went away: nothing more to say, and nobody to say it to.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return EXIT_OUTPUT_CLOSED
    return code


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK if given else EXIT_USAGE
    if given[0] in ("-V", "--version"):
        from geminga import __version__

        print(f"geminga {__version__}")
        return EXIT_OK
    if given[0] not in COMMANDS:
        print(_unknown_command(given[0]), file=sys.stderr)
        return EXIT_USAGE
    try:
        command = importlib.import_module(f"geminga.cli.{MODULES[given[0]]}")
        code: int = command.run(Parser, given[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def usage() -> str:
    lines = [f"  {name:15}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: geminga COMMAND [FLAGS]",
            "",
            "A message broker that speaks Apache Pulsar's protocol.",
            "",
            *lines,
            "",
            "'geminga COMMAND --help' lists the flags of a command.",
        ]
    )


def _unknown_command(given: str) -> str:
    import difflib

    near = difflib.get_close_matches(given, COMMANDS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"geminga: unknown command {given!r}.{hint} Try 'geminga --help'."
