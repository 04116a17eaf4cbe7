"""Flags that pulsar-admin takes before the command: `--admin-url URL topics list public/default`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

ADMIN_URL = "--admin-url"
URL = "--url"
WITH_VALUE = (
    ADMIN_URL,
    "--request-timeout",
    "--auth-plugin",
    "--auth-params",
    "--tls-trust-cert-path",
    "--tls-provider",
)
WITHOUT_VALUE = ("--tls-allow-insecure", "--tls-enable-hostname-verification")


class MissingValue(Exception):
    """The flag has nothing behind it."""


def split_off(arguments: Sequence[str], *, takes_url: bool = False) -> tuple[list[str], list[str]]:
    """The flags at the front, as they may stand behind a verb, and the rest. With `takes_url` `--url` is
    another name of `--admin-url`. Raises `MissingValue`.
    """
    flags: list[str] = []
    rest = list(arguments)
    with_value = (*WITH_VALUE, URL) if takes_url else WITH_VALUE
    while rest and (name := rest[0].partition("=")[0]) in (*with_value, *WITHOUT_VALUE):
        flags.append(rest.pop(0))
        if name == URL:
            flags[-1] = flags[-1].replace(URL, ADMIN_URL, 1)
        if name in with_value and "=" not in flags[-1]:
            if not rest:
                raise MissingValue(name)
            flags[-1] += f"={rest.pop(0)}"
    return flags, rest


def behind_verb(flags: Sequence[str], command: Sequence[str], *, has_verbs: bool) -> list[str]:
    """The command with the flags behind its verb. A command that is not pulsar-admin's takes only the
    address, at its end: it may have actions, which take flags of their own.
    """
    if has_verbs:
        return [*command[:2], *(flags if len(command) > 1 else ()), *command[2:]]
    url = [flag.replace(ADMIN_URL, URL, 1) for flag in flags if flag.startswith(ADMIN_URL)]
    at = command.index("--") if "--" in command else len(command)
    return [*command[:at], *url, *command[at:]]
