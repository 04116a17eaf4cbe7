"""`geminga pulsar-client`: pulsar-client's commands with its global options, defaults and output."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from geminga.cli.arguments.parser import EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.messages import consume, produce, read
from geminga.cli.messages.dialect import PULSAR

COMMANDS = {"produce": produce.run, "consume": consume.run, "read": read.run}
_WITHOUT_EFFECT = ("--auth-plugin", "--auth-params", "--listener-name", "--tlsTrustCertsFilePath")
_NOT_HERE = ("--proxy-url", "--proxy-protocol")
_USAGE = """usage: pulsar-client [--url URL] produce|consume|read [FLAGS] TOPIC

Produce, consume or read messages of a topic, with the words of Apache Pulsar's pulsar-client.

  produce   send messages to a topic
  consume   receive messages from a subscription
  read      print messages of a topic without a subscription

  --url URL        pulsar://HOST:PORT or http://HOST:PORT of a broker
  --auth-plugin CLASS, --auth-params PARAMS, --listener-name NAME
                   accepted, without effect: brokers of this kind ask for no credentials
  -v, --version    print the version

'pulsar-client COMMAND --help' lists the flags of a command."""


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    given = list(arguments)
    url: list[str] = []
    while given and given[0].startswith("-"):
        flag, equals, value = given.pop(0).partition("=")
        if flag in ("-h", "--help"):
            print(_USAGE)
            return EXIT_OK
        if flag in ("-v", "--version"):
            from geminga import __version__

            print(f"Current version of pulsar client is: geminga {__version__}")
            return EXIT_OK
        if flag not in ("--url", *_WITHOUT_EFFECT, *_NOT_HERE):
            return _refuse(f"unknown flag {flag}")
        if flag in _NOT_HERE:
            return _refuse(f"{flag}: this client speaks to brokers only, not through a proxy")
        if not equals:
            if not given:
                return _refuse(f"{flag}: expected one argument")
            value = given.pop(0)
        if flag == "--url":
            url = ["--url", value]
    if not given:
        print(_USAGE)
        return EXIT_USAGE
    command = COMMANDS.get(given[0])
    if command is None:
        import difflib

        near = difflib.get_close_matches(given[0], COMMANDS, n=1)
        return _refuse(f"unknown command {given[0]!r}" + (f" (did you mean {near[0]}?)" if near else ""))
    return command(kind, [*url, *given[1:]], PULSAR)


def _refuse(problem: str) -> int:
    print(f"pulsar-client: {problem}\nTry 'pulsar-client --help'.", file=sys.stderr)
    return EXIT_USAGE
