"""A verb as a row: its request, its flags, how its answer is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from geminga.cli.admin.admin_http import Admin
from geminga.names import NamespaceName, TopicName

Flags = Any
"""What `argparse` made of a command line: an attribute for each argument."""


class Flag(NamedTuple):
    """One option of a verb, as `argparse` takes it."""

    names: tuple[str, ...]
    options: dict[str, Any]


def flag(*names: str, **options: Any) -> Flag:
    return Flag(names, options)


def switch(*names: str, **options: Any) -> Flag:
    """True if it is given."""
    return Flag(names, {"action": "store_true", **options})


class Verb(NamedTuple):
    """A row of the table.

    `path` is one of the API below `/admin/v2/`, or a whole one. `{namespace}` and other names of `SUBJECTS`
    are positional arguments; any other `{name}` is the flag of that name.
    """

    text: str
    method: str
    path: str
    flags: Sequence[Flag] = ()
    query: Mapping[str, str] = {}
    """Which flag goes into which parameter. A value of None is left out."""
    body: Callable[[Flags], Any] | str | Mapping[str, str] | None = None
    """The JSON: made of the flags, the flag of this name, or an object of flags without those not given."""
    show: Callable[[Any, Flags], Any] | None = None
    """Makes of the answer what is printed: a string or a list of strings as they are, None: nothing, else
    JSON. Without it that is the answer; a GET without one prints `null`.
    """
    run: Callable[[Admin, Flags], Any] | None = None
    """In place of the one request: several, or one that depends on the flags. Returns the answer; with
    `flags.json` the whole of it, not worded for people.
    """

    takes_all: bool = False
    """Its subject may be left out: `run` then gets None, and answers of all there are."""

    @property
    def reads(self) -> bool:
        """Changes nothing and has an answer; `--json` prints it as one document."""
        return self.method == "GET"


class Subject(NamedTuple):
    metavar: str
    path_of: Callable[[str], str]
    """The argument as part of a path. Raises `InvalidName`."""


def quoted(text: str) -> str:
    return quote(text, safe="")


def _namespace(text: str) -> str:
    name = NamespaceName.parse(text)
    return f"{quoted(name.tenant)}/{quoted(name.local)}"


def _topic_in_namespace(text: str) -> str:
    name = TopicName.parse(text)
    return f"{quoted(name.tenant)}/{quoted(name.namespace.local)}/{quoted(name.local)}"


def _topic(text: str) -> str:
    return f"{TopicName.parse(text).domain.value}/{_topic_in_namespace(text)}"


SUBJECTS = {
    "tenant": Subject("TENANT", quoted),
    "cluster": Subject("CLUSTER", quoted),
    "policy": Subject("POLICY", quoted),
    "group": Subject("GROUP", quoted),
    "allocator": Subject("ALLOCATOR", quoted),
    "namespace": Subject("TENANT/NAMESPACE", _namespace),
    "topic": Subject("TOPIC", _topic),
    "of_topic": Subject("TOPIC", _topic_in_namespace),
}
"""Positional arguments, by their names in paths. `of_topic` is a topic in a path without its domain."""


def subjects_of(verb: Verb) -> list[str]:
    """The positional arguments of a verb, in the order of its path."""
    return [name for name in _names_in(verb.path) if name in SUBJECTS]


def path_of(path: str, flags: Flags) -> str:
    """The path with its arguments. Raises `InvalidName`."""
    values = {}
    for name in _names_in(path):
        subject = SUBJECTS.get(name)
        value = str(getattr(flags, name))
        values[name] = quoted(value) if subject is None else subject.path_of(value)
    filled = path.format(**values)
    return filled if filled.startswith("/") else f"/admin/v2/{filled}"


def _names_in(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]
