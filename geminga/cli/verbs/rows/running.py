"""Runs a verb: finds its row, parses its flags, sends its request, prints the answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geminga.cli.admin.admin_http import SECONDS_MAX, Admin, RequestFailed
from geminga.cli.arguments.options import WEB_URL_VARIABLE, default_web_url, positive
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.show.output import show_json
from geminga.cli.verbs.rows.verb import SUBJECTS, Flags, Verb, path_of, subjects_of
from geminga.errors import InvalidName

URL_FLAGS = ("--admin-url", "--url")
WITHOUT_EFFECT = ("--auth-plugin", "--auth-params", "--tls-trust-cert-path", "--tls-provider")
WITHOUT_EFFECT_OR_VALUE = ("--tls-allow-insecure", "--tls-enable-hostname-verification")
"""pulsar-admin's flags for brokers that ask for credentials, which this client cannot show."""


def run_group(group: str, verbs: Mapping[str, Verb], kind: type[Parser], arguments: Sequence[str]) -> int:
    """Run `geminga GROUP VERB ...`; the exit code."""
    program = f"{kind.PROGRAM} {group}"
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:48}{verb.text}" for name, verb in verbs.items()]
        print("\n".join([f"usage: {program} VERB [FLAGS]", "", *lines]))
        return EXIT_OK if arguments else EXIT_USAGE
    verb = verbs.get(arguments[0])
    if verb is None:
        print(_unknown(program, arguments[0], verbs), file=sys.stderr)
        return EXIT_USAGE
    parser = parser_of(kind, f"{program} {arguments[0]}", verb, _takers(program, arguments[0], verbs))
    flags = parser.parse_strictly(arguments[1:])
    try:
        admin = Admin(flags.admin_url, seconds_max=flags.request_timeout)
    except RequestFailed as error:
        print(kind.failure(f"{program} {arguments[0]}", error), file=sys.stderr)
        return EXIT_FAILED
    try:
        answer = _ask(admin, arguments[0], verbs, flags, whole=kind is Parser)
    except (RequestFailed, InvalidName) as error:
        print(kind.failure(f"{program} {arguments[0]}", error), end="", file=sys.stderr)
        print(
            _hint(admin, error, flags) if kind is Parser and isinstance(error, RequestFailed) else "",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if flags.json:
        show_json(answer)
    else:
        show(answer)
    return EXIT_OK


def _takers(program: str, asked: str, verbs: Mapping[str, Verb]) -> Callable[[str], str | None]:
    def taker(given: str) -> str | None:
        from geminga.cli.arguments import guesses

        flags_of = {name: [text for names, _ in verb.flags for text in names] for name, verb in verbs.items()}
        # A letter means another thing with each verb; only a whole word says what is wanted.
        found = guesses.verb_with(given, asked, flags_of) if given.startswith("--") else None
        return None if found is None else f"{program} {found}"

    return taker


def _hint(admin: Admin, error: RequestFailed, flags: Flags) -> str:
    """For a topic, namespace or tenant that is not there the name that was probably meant."""
    from geminga.cli.verbs.rows import near

    return near.hint(admin, error, flags)


def parser_of(
    kind: type[Parser], program: str, verb: Verb, taken_by: Callable[[str], str | None] = lambda _: None
) -> Parser:
    """What reads the verb's own flags, and those that pulsar-admin takes before the verb."""
    parser = kind(prog=program, description=verb.text, taken_by=taken_by)
    for name in subjects_of(verb):
        if verb.takes_all:
            parser.add_argument(
                name, metavar=SUBJECTS[name].metavar, nargs="?", help="(default: all there are)"
            )
        else:
            parser.add_argument(name, metavar=SUBJECTS[name].metavar)
    own = {name for names, _ in verb.flags for name in names}
    for names, options in verb.flags:
        parser.add_argument(*names, **options)
    if verb.reads:
        parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON document")
    else:
        parser.set_defaults(json=False)
    parser.set_defaults(program=kind.PROGRAM)
    parser.add_argument(
        *(name for name in URL_FLAGS if name not in own),
        dest="admin_url",
        default=default_web_url(),
        metavar="URL",
        help=f"the broker, http:// or pulsar:// (default: ${WEB_URL_VARIABLE} or http://127.0.0.1:8080)",
    )
    parser.add_argument(
        "--request-timeout", type=positive, default=SECONDS_MAX, metavar="SECONDS", help=argparse.SUPPRESS
    )
    for name in WITHOUT_EFFECT:
        if name not in own:
            parser.add_argument(name, help=argparse.SUPPRESS)
    for name in WITHOUT_EFFECT_OR_VALUE:
        if name not in own:
            parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    return parser


def _ask(admin: Admin, name: str, verbs: Mapping[str, Verb], flags: Flags, *, whole: bool) -> Any:
    """`ask`; with `whole` a partitioned topic is taken whole where the API refuses it."""
    try:
        return ask(admin, verbs[name], flags)
    except RequestFailed as error:
        if not whole:
            raise
        from geminga.cli.verbs.rows.whole import NotWhole, ask_whole

        def defaults(verb: Verb) -> Flags:
            given = (
                ["--subscription", ""] if any("--subscription" in names for names, _ in verb.flags) else []
            )
            return parser_of(Parser, "", verb).parse_strictly([flags.topic, *given])

        try:
            return ask_whole(admin, name, verbs, flags, ask, defaults)
        except NotWhole:
            raise error from None


def ask(admin: Admin, verb: Verb, flags: Flags) -> Any:
    """What the verb has to print. Raises `RequestFailed`, `InvalidName`."""
    if verb.run is not None:
        answer = verb.run(admin, flags)
    else:
        query = {key: getattr(flags, name) for key, name in verb.query.items()}
        answer = admin.call(verb.method, path_of(verb.path, flags), body_of(verb, flags), **query)
        if answer is None and verb.reads and verb.show is None and not flags.json:
            return "null"
    return answer if verb.show is None or flags.json else verb.show(answer, flags)


def body_of(verb: Verb, flags: Flags) -> Any:
    if isinstance(verb.body, str):
        return getattr(flags, verb.body)
    if isinstance(verb.body, Mapping):
        found = {key: getattr(flags, name) for key, name in verb.body.items()}
        return {key: value for key, value in found.items() if value is not None}
    return None if verb.body is None else verb.body(flags)


def show(answer: Any) -> None:
    """Lists of names one a line, strings as they are, anything else as JSON."""
    if isinstance(answer, list) and all(isinstance(item, str) for item in answer):
        print("\n".join(answer), end="\n" if answer else "")
    elif isinstance(answer, str):
        print(answer)
    elif answer is not None:
        show_json(answer)


def _unknown(program: str, given: str, verbs: Mapping[str, Verb]) -> str:
    from geminga.cli.arguments import guesses

    return f"{program}: unknown verb {given!r}.{guesses.verb(given, verbs)} Try '{program} --help'."
