"""The `geminga` command. A subcommand's module is imported when it is asked for: `--help` is quick."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from geminga.cli.arguments.parser import EXIT_INTERRUPTED, EXIT_OK, EXIT_OUTPUT_CLOSED, EXIT_USAGE, Parser

COMMANDS = {
    "standalone": "run a broker",
    "produce": "publish messages to a topic",
    "consume": "receive messages from a subscription",
    "read": "print messages of a topic without a subscription",
    "peek": "look at messages without consuming them",
    "status": "say what runs, where its data are, how full, what is wrong",
    "top": "show topics by rate or backlog, live",
    "perf": "measure rates and latencies of a broker",
    "delayed": "look into delayed messages, cancel or reschedule them",
    "fault": "inject faults into a broker that was started with --chaos",
    "tenants": "list, create, change and delete tenants",
    "namespaces": "list, create and delete namespaces, get and set their policies",
    "topics": "list, create and delete topics, show statistics, manage subscriptions",
    "topicPolicies": "get and set policies of single topics",
    "subscriptions": "create, move and delete subscriptions, look at their backlog",
    "schemas": "show, upload and delete the schemas of topics, say what would fit",
    "brokers": "show the broker's health and configuration, change settings at run time",
    "broker-stats": "dump the broker's figures as JSON",
    "clusters": "show and change what is known of clusters",
    "bookies": "list bookies, keep their racks",
    "resourcegroups": "keep resource groups",
    "resource-quotas": "keep resource quotas",
    "ns-isolation-policy": "keep isolation policies of namespaces",
    "backup": "make a consistent copy of a running broker's data",
    "chaos": "run a scenario: load, faults, restarts, and a check that nothing was lost",
    "snapshot": "save, restore, reset or seed the state of a running broker",
    "clock": "show the broker's clock, and move a virtual one",
    "events": "what happened in the broker, in order",
    "memory": "show what a running broker's memory is used for",
    "shims": "write scripts that are called as Pulsar's are: pulsar-admin and others",
    "completion": "print the script that completes these commands in bash, zsh or fish",
    "pipeline": "bulk work on Spark: audit deliveries, plan an index, rescue a broken directory",
    "bookie": "look into a stopped broker's storage: list, dump, verify, rebuild the index",
}
MODULES = {
    "standalone": "geminga.cli.standalone",
    "produce": "geminga.cli.messages.produce",
    "consume": "geminga.cli.messages.consume",
    "read": "geminga.cli.messages.read",
    "peek": "geminga.cli.messages.peek",
    "status": "geminga.cli.watch.status",
    "top": "geminga.cli.watch.top",
    "perf": "geminga.cli.perf.perf",
    "delayed": "geminga.cli.admin.delayed",
    "fault": "geminga.cli.admin.fault",
    "tenants": "geminga.cli.verbs.tenants",
    "namespaces": "geminga.cli.verbs.namespaces",
    "topics": "geminga.cli.verbs.topics",
    "topicPolicies": "geminga.cli.verbs.topic_policies",
    "subscriptions": "geminga.cli.verbs.subscriptions",
    "schemas": "geminga.cli.verbs.schemas",
    "brokers": "geminga.cli.verbs.brokers",
    "broker-stats": "geminga.cli.verbs.broker_stats",
    "clusters": "geminga.cli.verbs.clusters",
    "bookies": "geminga.cli.verbs.bookies",
    "resourcegroups": "geminga.cli.verbs.resource_groups",
    "resource-quotas": "geminga.cli.verbs.resource_quotas",
    "ns-isolation-policy": "geminga.cli.verbs.isolation",
    "backup": "geminga.cli.admin.backup",
    "chaos": "geminga.cli.chaos.chaos",
    "snapshot": "geminga.cli.seeding.snapshot",
    "clock": "geminga.cli.admin.clock",
    "events": "geminga.cli.admin.events",
    "memory": "geminga.cli.admin.memory",
    "shims": "geminga.cli.pulsar",
    "completion": "geminga.cli.completion",
    "pipeline": "geminga.cli.pipeline.pipeline",
    "bookie": "geminga.cli.bookie.bookie",
}
"""Where each command's `run` is. Whole names, so that the test of the import order sees them."""
UNLISTED = {
    "pulsar-client": "geminga.cli.messages.pulsar_client",
    "pulsar-admin": "geminga.cli.verbs.pulsar_admin",
    "pulsar-perf": "geminga.cli.perf.pulsar_perf",
    "pulsar": "geminga.cli.pulsar",
    "persistent": "geminga.cli.verbs.topics",
    "complete": "geminga.cli.completion",
}
"""Commands that people do not look for in `--help`: Pulsar's words for ours, and what shells ask."""
HAS_VERBS = "geminga.cli.verbs."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_missing_streams()
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed its end: there is nothing left to write to.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return EXIT_OUTPUT_CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        print(f"geminga: standard output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OUTPUT_CLOSED
    return code


def _open_missing_streams() -> None:
    """Give the process the standard streams that it was started without (`>&-`), on the null device.

    Else the next file that is opened takes the place of one, and has whatever a library prints in it.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0].startswith("--"):
        given = _with_flags_behind(given)
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK if given else EXIT_USAGE
    if given[0] in ("-V", "--version", "version"):
        from geminga import __version__
        from geminga.loops import kind

        print(f"geminga {__version__} (loops: {kind()})")
        return EXIT_OK
    module = MODULES.get(given[0]) or UNLISTED.get(given[0])
    if module is None:
        print(_unknown_command(given[0]), file=sys.stderr)
        return EXIT_USAGE
    try:
        command = importlib.import_module(module)
        if given[0] == "complete":
            return int(command.run_complete(given[1:], COMMANDS, MODULES))
        if given[0] in ("pulsar-admin", "pulsar"):
            return int(command.run_words(given[1:], COMMANDS, MODULES))
        code: int = command.run(Parser, given[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _with_flags_behind(given: list[str]) -> list[str]:
    """`--url URL topics list` as `topics list --admin-url=URL`: pulsar-admin's order works as well."""
    from geminga.cli.arguments.global_flags import MissingValue, behind_verb, split_off

    try:
        flags, command = split_off(given, takes_url=True)
    except MissingValue:
        return given
    has_verbs = MODULES.get(command[0], "").startswith(HAS_VERBS) if command else False
    return behind_verb(flags, command, has_verbs=has_verbs) if flags and command else given


def usage() -> str:
    lines = [f"  {name:21}{text}" for name, text in COMMANDS.items()]
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
    from geminga.cli.arguments import guesses

    return f"geminga: unknown command {given!r}.{guesses.command(given, COMMANDS)} Try 'geminga --help'."
