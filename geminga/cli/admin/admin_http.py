"""The admin API as a command calls it: one request, its answer, or a line that says what went wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from geminga.cli.arguments.options import WEB_URL_VARIABLE, add_web_url
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.client.addresses import START_ONE, web_url
from geminga.cli.client.errors import ClientError
from geminga.client import admin
from geminga.errors import GemingaError, InvalidName
from geminga.names import NamespaceName, TopicName

SECONDS_MAX = 60


class RequestFailed(GemingaError):
    """The broker refused, or did not answer."""


class Admin:
    """The admin API at one address."""

    def __init__(self, url: str, *, seconds_max: float = SECONDS_MAX) -> None:
        """`url` is either address of the broker. `RequestFailed` if the admin API is not found beside it."""
        try:
            self.url = web_url(url)
        except ClientError as error:
            raise RequestFailed(str(error)) from None
        self._seconds_max = seconds_max

    def call(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The answer's JSON, None for none. `RequestFailed` with the broker's own reason."""
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        asked = urlencode({key: _text(value) for key, value in query.items() if value is not None})
        request = Request(f"{self.url}{path}{'?' if asked else ''}{asked}", method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with urlopen(request, timeout=self._seconds_max) as response:
                answer = response.read()
                warning = response.headers.get("Warning", "")
        except HTTPError as error:
            raise RequestFailed(admin.reason_of(error.read()) or f"{error.code} {error.reason}") from None
        except (URLError, OSError, ValueError) as error:
            raise RequestFailed(unreachable(self.url, error)) from None
        if warning:
            print(f"warning: {warning.partition(chr(34))[2].rstrip(chr(34)) or warning}", file=sys.stderr)
        return json.loads(answer) if answer.strip() else None


def unreachable(url: str, error: Exception) -> str:
    """Why there was no answer. If the connection was refused, also what the user can do."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError):
        return f"{url}: nothing listens there; {START_ONE}; --url or ${WEB_URL_VARIABLE} name another"
    return f"{url}: {reason}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def namespace_path(text: str) -> str:
    """The path of `tenant/namespace`."""
    return admin.namespace_path(NamespaceName.parse(text))


def topic_path(text: str) -> str:
    """The path of a topic, named in full or by its last part in public/default."""
    return admin.topic_path(TopicName.parse(text))


def partition_of(text: str) -> int:
    """The number of the partition that a topic's name says it is, -1: none."""
    return TopicName.parse(text).partition_index


class Flag(NamedTuple):
    """One option of a verb, as `argparse` takes it."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Verb(NamedTuple):
    """`run` gets the admin API and the parsed flags; what it returns is printed."""

    text: str
    subject: str
    """What the positional argument is called; empty: there is none."""
    flags: Sequence[Flag]
    run: Callable[[Admin, Any], Any]


def flag(*names: str, **options: Any) -> Flag:
    return Flag(names, options)


def run_group(kind: type[Parser], group: str, verbs: Mapping[str, Verb], arguments: Sequence[str]) -> int:
    """Run `geminga GROUP VERB ...`; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:48}{verb.text}" for name, verb in verbs.items()]
        print("\n".join([f"usage: geminga {group} VERB [FLAGS]", "", *lines]))
        return EXIT_OK if arguments else EXIT_USAGE
    verb = verbs.get(arguments[0])
    if verb is None:
        print(_unknown(group, arguments[0], verbs), file=sys.stderr)
        return EXIT_USAGE
    parser = kind(prog=f"geminga {group} {arguments[0]}", description=verb.text)
    if verb.subject:
        parser.add_argument("subject", metavar=verb.subject)
    for names, options in verb.flags:
        parser.add_argument(*names, **options)
    add_web_url(parser)
    flags = parser.parse_strictly(arguments[1:])
    try:
        answer = verb.run(Admin(flags.url), flags)
    except (RequestFailed, InvalidName) as error:
        print(f"geminga {group} {arguments[0]}: {error}", file=sys.stderr)
        return EXIT_FAILED
    _show(answer)
    return EXIT_OK


def _show(answer: Any) -> None:
    if isinstance(answer, list) and all(isinstance(item, str) for item in answer):
        print("\n".join(answer), end="\n" if answer else "")
    elif answer is not None:
        print(json.dumps(answer, indent=2))


def _unknown(group: str, given: str, verbs: Mapping[str, Verb]) -> str:
    import difflib

    near = difflib.get_close_matches(given, verbs, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"geminga {group}: unknown verb {given!r}.{hint} Try 'geminga {group} --help'."
