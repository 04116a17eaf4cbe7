"""`geminga completion bash|zsh|fish`: what a shell needs to complete commands, flags, topics, subscriptions.

The script that is printed asks `geminga complete` at each press of the tab key. That finds the parser of the
command by running it with a parser that stops where it would read the arguments, so that nothing here repeats
what commands say of themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from geminga.cli.arguments.options import Choice, default_web_url
from geminga.cli.arguments.parser import EXIT_OK, Parser

SECONDS_MAX = 1.0
"""A broker that takes longer completes nothing."""
NAMES_MAX = 500
SHELLS = {
    "bash": """\
# geminga completion for bash:  source <(geminga completion bash)
_geminga() {
    # Bash takes persistent://a/b/c for three words: the colon is one of COMP_WORDBREAKS.
    local IFS=$'\\n' words=() at=-1 end=-1 i word
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        if ((end >= 0)) && [[ $word == :* || ( -n $word && ${words[end]} == *: ) ]]; then
            words[end]+=$word
        else
            words[++end]=$word
        fi
        ((i == COMP_CWORD)) && at=$end
    done
    word=${words[at]}
    COMPREPLY=($(geminga complete "$at" "${words[@]}" 2>/dev/null | cut -f1))
    # What stands before the last colon is there already.
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    return 0
}
complete -o default -F _geminga geminga""",
    "zsh": """\
#compdef geminga
# geminga completion for zsh:  source <(geminga completion zsh)
_geminga() {
    local -a found
    local word text
    geminga complete $((CURRENT - 1)) "${words[@]}" 2>/dev/null | while IFS=$'\\t' read -r word text; do
        found+=("${word//:/\\\\:}:$text")
    done
    (( $#found )) && _describe geminga found || _files
}
compdef _geminga geminga""",
    "fish": """\
# geminga completion for fish:  geminga completion fish | source
function __geminga_complete
    set -l before (commandline -opc)
    geminga complete (count $before) $before (commandline -ct) 2>/dev/null
end
complete -c geminga -a '(__geminga_complete)'""",
}

Found = Iterable[tuple[str, str]]
"""Words that fit, each with what it means."""


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    made = kind(prog="geminga completion", description="Print the script that completes geminga in a shell.")
    made.add_argument("shell", choices=sorted(SHELLS), help="source <(geminga completion bash)")
    print(SHELLS[made.parse_strictly(arguments).shell])
    return EXIT_OK


def run_complete(arguments: Sequence[str], commands: dict[str, str], modules: dict[str, str]) -> int:
    """`geminga complete AT WORD...`: the words that may stand at `AT`, with what they mean. `commands` says
    what each is for, `modules` where its `run` is.
    """
    at, *words = arguments or ("0",)
    if at.isascii() and at.isdigit():
        at_word = int(at)
        current = words[at_word] if at_word < len(words) else ""
        for word, text in complete(words[1:at_word], current, commands, modules):
            if word.startswith(current):
                print(f"{word}\t{text}")
    return EXIT_OK


class _Stopped(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


class _Stopping(Parser):
    """Stops the command where it has said all of its flags."""

    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        raise _Stopped(self)


def complete(before: Sequence[str], current: str, commands: dict[str, str], modules: dict[str, str]) -> Found:
    """What may follow the words `before`; some of it may not begin with `current`."""
    if not before:
        return commands.items()
    module = modules.get(before[0])
    if module is None:
        return ()
    run_command: Callable[[type[Parser], Sequence[str]], int] = importlib.import_module(module).run
    rest = list(before[1:])
    parser = _parser_of(run_command, rest)
    if parser is None and rest:
        parser = _parser_of(run_command, rest[:1])
    if parser is None:
        return _verbs_of(run_command) if not rest else ()
    rest = rest[len(parser.prog.split()) - len(("geminga", before[0])) :]  # without the verb
    while (nested := _nested(parser)) is not None:
        if not rest or rest[0] not in nested:
            return [(name, made.description or "") for name, made in nested.items()]
        parser, rest = nested[rest[0]], rest[1:]
    return _words_of(parser, rest, current)


def _parser_of(
    run_command: Callable[[type[Parser], Sequence[str]], int], rest: Sequence[str]
) -> argparse.ArgumentParser | None:
    """The parser that the command reads these arguments with; None if it lacks a verb."""
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            run_command(_Stopping, [*rest])
    except _Stopped as stopped:
        return stopped.parser
    except SystemExit:
        return None
    return None


def _verbs_of(run_command: Callable[[type[Parser], Sequence[str]], int]) -> Found:
    """From the list that a group of commands prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        run_command(_Stopping, ["--help"])
    return re.findall(r"^  ([a-zA-Z][\w-]*) {2,}(.*)$", printed.getvalue(), re.MULTILINE)


def _nested(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser] | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return None


def _words_of(parser: argparse.ArgumentParser, rest: Sequence[str], current: str) -> Found:
    flags: dict[str, argparse.Action] = parser._option_string_actions
    last = flags.get(rest[-1]) if rest else None
    if last is not None and last.nargs != 0:
        return _values_of(last, rest, flags)
    if current.startswith("-"):
        return [
            (flag, (action.help or "").replace("\n", " "))
            for flag, action in flags.items()
            if action.help != argparse.SUPPRESS and (flag.startswith("--") or not current.startswith("--"))
        ]
    positionals = [action for action in parser._actions if not action.option_strings]
    given = list(_positionals(rest, flags))
    if len(given) >= len(positionals):
        return ()
    wanted = positionals[len(given)]
    if wanted.choices is not None:
        return [(str(value), "") for value in wanted.choices]
    return _names_like(wanted.metavar or wanted.dest, current)


def _values_of(action: argparse.Action, rest: Sequence[str], flags: dict[str, argparse.Action]) -> Found:
    known = action.choices or (action.type.known if isinstance(action.type, Choice) else ())
    if known:
        return [(str(value), "") for value in known]
    if action.dest == "subscription":
        given = list(_positionals(rest[:-1], flags))
        return _subscriptions_of(given[0]) if given else ()
    return ()


def _positionals(rest: Sequence[str], flags: dict[str, argparse.Action]) -> Iterable[str]:
    takes_next = False
    for word in rest:
        if takes_next:
            takes_next = False
        elif word.startswith("-"):
            action = flags.get(word)
            takes_next = action is not None and action.nargs != 0
        else:
            yield word


def _names_like(what: object, current: str) -> Found:
    named = str(what).lower()
    if named == "topic":
        return _topics_like(current)
    if named == "tenant/namespace":
        return _asked("/admin/v2/namespaces/public", lambda names: names)
    return ()


def _topics_like(current: str) -> Found:
    """Topics of the namespace that the word names, else of public/default; in full if it has a domain."""
    from geminga.cli.admin.admin_http import namespace_path
    from geminga.cli.figures.rows import short_name, whole_name
    from geminga.errors import InvalidName

    domain, _, rest = current.rpartition("://")
    names_namespace = rest.count("/") == 2
    namespace = rest.rpartition("/")[0] if names_namespace else "public/default"

    def shown(topic: str) -> str:
        if domain:
            return topic
        return topic.removeprefix("persistent://") if names_namespace else short_name(topic)

    try:
        path = namespace_path(namespace).replace("/namespaces/", "/persistent/", 1)
    except InvalidName:
        return ()
    return _asked(path, lambda names: dict.fromkeys(shown(whole_name(name)) for name in names))


def _subscriptions_of(topic: str) -> Found:
    from geminga.cli.admin.admin_http import topic_path
    from geminga.errors import InvalidName

    try:
        return _asked(f"{topic_path(topic)}/subscriptions", lambda names: names)
    except InvalidName:
        return ()


def _asked(path: str, names_of: Callable[[Any], Iterable[str]]) -> Found:
    """Names that the broker lists; none if it does not answer at once."""
    from geminga.cli.admin.admin_http import Admin, RequestFailed

    try:
        answer = Admin(default_web_url(), seconds_max=SECONDS_MAX).call("GET", path)
    except RequestFailed:
        return ()
    names = [name for name in answer or () if isinstance(name, str) and name.isprintable()]
    return [(name, "") for name in list(names_of(names))[:NAMES_MAX]]
