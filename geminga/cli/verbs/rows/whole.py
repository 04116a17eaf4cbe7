"""Verbs of the API that a partitioned topic is refused for: its own verb, or each partition in turn."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from geminga.cli.admin.admin_http import Admin, RequestFailed, topic_path
from geminga.cli.verbs.rows.verb import Flags, Verb
from geminga.errors import InvalidName
from geminga.names import TopicName

SIBLINGS = {
    "stats": "partitioned-stats",
    "stats-internal": "partitioned-stats-internal",
    "delete": "delete-partitioned-topic",
    "terminate": "partitioned-terminate",
}
"""What asks for the whole topic at once."""
OF_EACH = ("last-message-id", "analyze-backlog", "get-backlog-size", "reset-cursor", "seek")
"""What is asked of each partition; the answer has each by its name."""
Ask = Callable[[Admin, Verb, Flags], Any]


class NotWhole(Exception):
    """The verb is none of these, or the topic is not partitioned."""


def ask_whole(
    admin: Admin,
    name: str,
    verbs: Mapping[str, Verb],
    flags: Flags,
    ask: Ask,
    defaults: Callable[[Verb], Flags],
) -> Any:
    """The answer of all partitions. `defaults` are the flags of a verb that was given none. Raises
    `NotWhole`, `RequestFailed`; where one partition failed, those before it are done.
    """
    topic = getattr(flags, "topic", None)
    if not isinstance(topic, str) or name not in (*SIBLINGS, *OF_EACH):
        raise NotWhole
    names = _partitions(admin, topic)
    if name in OF_EACH:
        answers = {part: ask(admin, verbs[name], _with(flags, topic=part)) for part in names}
        return None if all(answer is None for answer in answers.values()) else answers
    verb = verbs[SIBLINGS[name]]
    return ask(admin, verb, _with(defaults(verb), **vars(flags)))


def _partitions(admin: Admin, topic: str) -> list[str]:
    try:
        name = TopicName.parse(topic)
        count = admin.call("GET", f"{topic_path(topic)}/partitions")["partitions"]
    except (RequestFailed, InvalidName, KeyError, TypeError):
        raise NotWhole from None
    if not count:
        raise NotWhole
    return [f"{name}-partition-{number}" for number in range(count)]


def _with(flags: Flags, **changed: Any) -> Flags:
    return argparse.Namespace(**{**vars(flags), **changed})
