"""What was probably meant by a word that is none of ours: a word of another tool, or one that looks alike.

Pure. Imported when a command fails only.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("start", "run", "serve", "server", "broker", "up"), "geminga standalone"),
    **dict.fromkeys(("pub", "publish", "send"), "geminga produce"),
    **dict.fromkeys(("sub", "subscribe", "receive", "listen"), "geminga consume"),
    **dict.fromkeys(("cat", "tail"), "geminga read"),
    **dict.fromkeys(("bench", "benchmark"), "geminga perf"),
    **dict.fromkeys(("ls", "list", "queues"), "geminga topics list"),
    **dict.fromkeys(("info", "health", "healthcheck", "ping"), "geminga status"),
    **dict.fromkeys(("consumer", "consumers", "group", "groups"), "geminga subscriptions"),
    **dict.fromkeys(("config", "settings"), "geminga brokers get-runtime-config"),
}
"""Words of other tools, and the command here that does the same."""
ANSWERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("stop", "shutdown", "down", "kill"),
        " Ctrl-C stops a broker, or 'kill PID' with the process that 'geminga status' names.",
    ),
    **dict.fromkeys(
        ("metrics", "scrape"), " The metrics of a topic: curl -s http://127.0.0.1:8080/metrics | grep TOPIC"
    ),
}
"""What no command here does, and what does."""
VERBS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("ls", "show", "all"), ("list",)),
    **dict.fromkeys(("rm", "remove", "del", "destroy"), ("delete",)),
    **dict.fromkeys(("add", "new", "make"), ("create",)),
    **dict.fromkeys(("describe", "info", "metrics", "backlog"), ("stats", "policies", "get")),
    **dict.fromkeys(("skip-all", "purge", "clear"), ("clear-backlog",)),
    **dict.fromkeys(("seek", "reset", "rewind"), ("reset-cursor", "seek")),
    "set": ("update-dynamic-config",),
    "set-ttl": ("set-message-ttl",),
    "get-ttl": ("get-message-ttl",),
}
"""The same of verbs; the first that a group has."""


def command(given: str, known: Collection[str]) -> str:
    """` Did you mean ...?`, or "" where nothing comes near."""
    if given in ANSWERS:
        return ANSWERS[given]
    if given in COMMANDS:
        return f" Did you mean '{COMMANDS[given]}'?"
    return alike(given, known)


def verb(given: str, known: Collection[str]) -> str:
    """The same for a verb of a group."""
    other = next((name for name in VERBS.get(given, ()) if name in known), None)
    return f" Did you mean {other}?" if other else alike(given, known)


def alike(given: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def verb_with(flag: str, asked: str, flags_of: Mapping[str, Collection[str]]) -> str | None:
    """The verb, the most alike to the one that was asked for, that has this flag; None if none has."""
    takers = [name for name, flags in flags_of.items() if flag in flags]
    found = difflib.get_close_matches(asked, takers, n=1, cutoff=0.0)
    return found[0] if found else None


def name(given: str, known: Collection[str], *, shared: str = "") -> str:
    """`; did you mean ...?` for the name of a thing that is not there. What comes behind `shared`, which all
    begin with, is compared: with a long one every name would come near.
    """
    ends = [other.removeprefix(shared) for other in known if other.startswith(shared)]
    near = difflib.get_close_matches(given.removeprefix(shared), ends, n=1, cutoff=0.7)
    return f"; did you mean {shared}{near[0]}?" if near else ""
