"""`geminga pulsar` and `geminga shims`: the launcher's words, and scripts that are called as Pulsar's are."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser

SCRIPTS = ("pulsar", "pulsar-admin", "pulsar-client", "pulsar-perf")
"""Each is a command of `geminga` of the same name."""
MARK = "# Written by 'geminga shims'."
DROPPED = {
    **dict.fromkeys(("--zookeeper-dir", "--zookeeper-port", "--bookkeeper-dir", "--bookkeeper-port"), 1),
    **dict.fromkeys(("--num-bookies", "--stream-storage-port", "--functions-worker-conf", "-fwc"), 1),
}
"""Flags of Pulsar's standalone about parts that are none here, with how many values they take."""
DATA_DIRECTORY = "--metadata-dir"
NOT_HERE = {
    "broker": "this broker is one process: pulsar standalone",
    "bookie": "its storage is in the broker: pulsar standalone",
    "zookeeper": "its metadata are in the broker: pulsar standalone",
    "tokens": "this broker asks for no credentials",
}
NOTHING_TO_DO = ("initialize-cluster-metadata", "initialize-transaction-coordinator-metadata")
"""What scripts do once before brokers run; here a broker makes its metadata with its first start."""
_USAGE = """usage: pulsar standalone [FLAGS]
       pulsar version

  standalone   run a broker; 'pulsar standalone --help' lists its flags, and those of Pulsar's are taken
  version      print the version"""


def run_words(arguments: Sequence[str], commands: Mapping[str, str], modules: Mapping[str, str]) -> int:
    """`geminga pulsar WORD ...`; the exit code."""
    word = arguments[0] if arguments else ""
    if word in ("", "-h", "--help", "help"):
        print(_USAGE)
        return EXIT_OK if word else EXIT_USAGE
    if word == "version":
        from geminga import __version__

        print(f"Current version of pulsar is: geminga {__version__}")
        return EXIT_OK
    if word in NOTHING_TO_DO:
        print(f"pulsar: {word}: nothing to do, a broker makes its metadata by itself", file=sys.stderr)
        return EXIT_OK
    if word != "standalone":
        print(f"pulsar: {word}: {NOT_HERE.get(word, 'unknown; try pulsar --help')}", file=sys.stderr)
        return EXIT_USAGE
    code: int = importlib.import_module(modules[word]).run(Parser, standalone_flags(arguments[1:]))
    return code


def standalone_flags(given: Sequence[str]) -> list[str]:
    """The launcher's flags as ours: the metadata's directory is that of all data, others have no meaning."""
    flags: list[str] = []
    rest = list(given)
    while rest:
        name, _, value = rest.pop(0).partition("=")
        whole = f"{name}={value}" if value else name
        if name in DROPPED:
            if not value and rest:
                rest.pop(0)
        elif name == DATA_DIRECTORY:
            flags += ["--data-dir", value or (rest.pop(0) if rest else "")]
        elif name == "-a":
            flags.append("--advertised-address")
        else:
            flags.append(whole)
    return flags


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """`geminga shims DIR`; the exit code."""
    parser = kind(
        prog="geminga shims",
        description="Write the scripts pulsar, pulsar-admin, pulsar-client and pulsar-perf, which run this "
        "program with Pulsar's words. Put the directory into PATH where you want them to be found; a real "
        "Pulsar is left alone elsewhere.",
    )
    parser.add_argument("directory", metavar="DIR", help="where to, for example ./bin")
    directory = Path(parser.parse_strictly(arguments).directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = [name for name in SCRIPTS if not _is_ours(directory / name)]
        if foreign:
            print(
                f"geminga shims: {directory / foreign[0]} is another program's; choose another directory",
                file=sys.stderr,
            )
            return EXIT_FAILED
        for name in SCRIPTS:
            path = directory / name
            path.write_text(script(name, sys.executable))
            path.chmod(0o755)
    except OSError as error:
        print(f"geminga shims: {error.filename}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return EXIT_FAILED
    print(f'PATH="{directory.resolve()}:$PATH"')
    return EXIT_OK


def script(name: str, python: str) -> str:
    return f'#!/bin/sh\n{MARK}\nexec {shlex.quote(python)} -P -m geminga {name} "$@"\n'


def _is_ours(path: Path) -> bool:
    return not path.exists() or MARK in path.read_text(errors="replace")
