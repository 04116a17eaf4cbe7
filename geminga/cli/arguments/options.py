"""Flags that several commands share, and the values they take."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from geminga import units
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, invalid_choice
from geminga.config.operator_token import OPERATOR_TOKEN_VARIABLE, TOKEN_CHARACTERS_MAX

DEFAULT_URL = "pulsar://127.0.0.1:6650"
URL_VARIABLE = "GEMINGA_URL"
DEFAULT_WEB_URL = "http://127.0.0.1:8080"
WEB_URL_VARIABLE = "GEMINGA_WEB_URL"


def default_url() -> str:
    """The broker of commands that send and receive messages; either variable will do."""
    return os.environ.get(URL_VARIABLE) or os.environ.get(WEB_URL_VARIABLE) or DEFAULT_URL


def default_web_url() -> str:
    """The broker of commands that speak the admin API; either variable will do."""
    return os.environ.get(WEB_URL_VARIABLE) or os.environ.get(URL_VARIABLE) or DEFAULT_WEB_URL


def add_web_url(parser: argparse.ArgumentParser) -> None:
    """Either address of the broker; `cli/client/addresses.py` finds the other."""
    parser.add_argument(
        "--url",
        default=default_web_url(),
        help=f"the broker, http:// or pulsar:// (default: ${WEB_URL_VARIABLE} or {DEFAULT_WEB_URL})",
    )
    parser.add_argument(
        "--operator-token-file",
        metavar="FILE",
        type=operator_token_file,
        help=f"where the token of a broker elsewhere is, for what only its operator may do "
        f"(default: the token in ${OPERATOR_TOKEN_VARIABLE})",
    )


def operator_token_file(name: str) -> str:
    """The token in a file takes the place of the one in the environment."""
    try:
        with open(name, encoding="ascii") as file:
            token = file.read(TOKEN_CHARACTERS_MAX + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "this is no ASCII text"
        raise argparse.ArgumentTypeError(f"{name}: {reason}") from None
    if not token or len(token) > TOKEN_CHARACTERS_MAX or not token.isprintable() or " " in token:
        raise argparse.ArgumentTypeError(f"{name}: expected one line with the operator's token")
    os.environ[OPERATOR_TOKEN_VARIABLE] = token
    return name


def add_url(parser: argparse.ArgumentParser) -> None:
    """Either address of the broker."""
    parser.add_argument(
        "--url",
        default=default_url(),
        help=f"pulsar:// or http:// address of the broker (default: ${URL_VARIABLE} or {DEFAULT_URL})",
    )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _at_least(1, text)


def rate(text: str) -> float:
    """Messages a second, 0: no limit."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"expected messages a second, 0 for no limit, not {text!r}")
    return value


def count(text: str) -> int:
    """A whole number of at least 0."""
    return _at_least(0, text)


def _at_least(lowest: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= lowest):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {lowest}, not {text!r}")
    return int(text)


def duration_ms(text: str) -> int:
    """As `units.duration_ms`."""
    return _in_units(units.duration_ms, text)


def signed_ms(text: str) -> int:
    """As `units.signed_ms`."""
    return _in_units(units.signed_ms, text)


def time_ms(text: str) -> int:
    """As `units.time_ms`."""
    return _in_units(units.time_ms, text)


def size_bytes(text: str) -> int:
    """As `units.size_bytes`."""
    return _in_units(units.size_bytes, text)


def positive_bytes(text: str) -> int:
    """As `units.size_bytes`, at least 1."""
    if (found := size_bytes(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 byte, not {text!r}")
    return found


def _in_units(parse: Callable[[str], int], text: str) -> int:
    """For argparse, which shows the text of this error only."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class Choice:
    """One of these, in any case, with - for _ as well."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known

    def __call__(self, text: str) -> str:
        given = text.lower().replace("-", "_")
        if given not in self.known:
            raise argparse.ArgumentTypeError(invalid_choice(text, self.known))
        return given


def property_text(text: str) -> str:
    """`key=value`, as it is."""
    pair(text)
    return text


def pair(text: str) -> tuple[str, str]:
    """`key=value`"""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"expected key=value, not {text!r}")
    return key, value


def counted(number: int, what: str) -> str:
    """`1 message`, `2 messages`"""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def leave_line() -> None:
    """After an interrupt a terminal's cursor stands behind ^C."""
    if sys.stderr.isatty():
        print(file=sys.stderr)


def run_until_done(
    name: str,
    main: Callable[[], Awaitable[int | None]],
    summary: Callable[[], str] | None = None,
    *,
    dialect: str = "geminga",
    summary_on_stdout: bool = False,
) -> int:
    """Run a client command; its exit code, which `main` returns (None: done). Ctrl-C ends it, with what it
    has to say so far said.

    `summary` is asked for at the end, and printed to standard error.
    """
    import trio

    from geminga.cli.client.errors import ClientError
    from geminga.errors import GemingaError

    def conclude(code: int) -> int:
        if summary is not None and code == EXIT_INTERRUPTED:
            leave_line()
        if summary is not None and (said := summary()):
            print(said, file=sys.stdout if summary_on_stdout else sys.stderr)
        return code

    def complain(error: GemingaError) -> int:
        print(f"{dialect} {name}: {error}", file=sys.stderr)
        return EXIT_FAILED

    try:
        code = trio.run(main)
    except KeyboardInterrupt:
        return conclude(EXIT_INTERRUPTED)
    except ClientError as error:
        return complain(error)
    except BaseExceptionGroup as group:
        interrupted, rest = group.split(KeyboardInterrupt)
        if interrupted is not None and rest is None:
            return conclude(EXIT_INTERRUPTED)
        if group.subgroup(BrokenPipeError) is not None:
            raise BrokenPipeError from None  # only our own output is a pipe: main ends the program
        known = group.subgroup(GemingaError)
        if known is None or group.split(GemingaError)[1] is not None:
            raise
        leaf: BaseException = known
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        assert isinstance(leaf, GemingaError)
        return complain(leaf)
    return conclude(EXIT_OK if code is None else code)
