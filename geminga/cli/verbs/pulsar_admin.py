"""`geminga pulsar-admin`: the same verbs with pulsar-admin's global flags, and its wording of errors."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from geminga.cli.admin.admin_http import RequestFailed
from geminga.cli.arguments.global_flags import MissingValue, behind_verb, split_off
from geminga.cli.arguments.parser import EXIT_OK, EXIT_USAGE, Parser

GROUPS = "geminga.cli.verbs."
"""Where the modules are of commands that pulsar-admin has as well."""
NOT_HERE = ("functions", "functions-worker", "sources", "sinks", "packages", "transactions", "proxy-stats")
_FLAGS = """
  --admin-url URL            http://HOST:PORT or pulsar://HOST:PORT of the broker
  --request-timeout SECONDS  how long to wait for an answer
  --auth-plugin, --auth-params, --tls-...
                             accepted, without effect: this broker asks for no credentials
  -v, --version              print the version

'pulsar-admin GROUP --help' lists the verbs of a group."""


class PulsarParser(Parser):
    """Calls the program what the user called it."""

    PROGRAM = "pulsar-admin"

    @staticmethod
    def failure(command: str, error: Exception) -> str:
        """Two lines, as scripts look for them: the status, then the reason."""
        status = error.status if isinstance(error, RequestFailed) else ""
        return f"HTTP {status}\n\nReason: {error}" if status else str(error)


def run_words(arguments: Sequence[str], commands: Mapping[str, str], modules: Mapping[str, str]) -> int:
    """The whole command; returns its exit code. `commands` says what each is for, `modules` where it is."""
    groups = {name: module for name, module in modules.items() if module.startswith(GROUPS)}
    try:
        flags, command = split_off(arguments)
    except MissingValue as error:
        return _refuse(f"{error}: expected a value")
    if command[:1] in (["-v"], ["--version"]):
        from geminga import __version__

        print(f"Current version of pulsar admin client is: geminga {__version__}")
        return EXIT_OK
    if not command or command[0] in ("-h", "--help", "help"):
        lines = [f"  {name:21}{commands[name]}" for name in groups]
        print("\n".join(["usage: pulsar-admin [FLAGS] GROUP VERB [FLAGS]", "", *lines]) + "\n" + _FLAGS)
        return EXIT_OK if command else EXIT_USAGE
    module = {**groups, "persistent": modules["topics"]}.get(command[0])
    if module is None:
        return _refuse(_unknown(command[0], groups))
    code: int = importlib.import_module(module).run(
        PulsarParser, behind_verb(flags, command, has_verbs=True)[1:]
    )
    return code


def _unknown(given: str, groups: Mapping[str, str]) -> str:
    import difflib

    if given in NOT_HERE:
        return f"{given}: this broker has none"
    if given.startswith("-"):
        return f"unknown flag {given}"
    near = difflib.get_close_matches(given, groups, n=1)
    return f"unknown group {given!r}" + (f" (did you mean {near[0]}?)" if near else "")


def _refuse(problem: str) -> int:
    print(f"pulsar-admin: {problem}\nTry 'pulsar-admin --help'.", file=sys.stderr)
    return EXIT_USAGE
