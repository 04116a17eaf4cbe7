"""Flags that pulsar-admin takes before the command: `--admin-url URL topics list public/default`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

ADMIN_URL = "--admin-url"
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


def split_off(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags at the front, as they may stand behind a verb, and the rest. Raises `MissingValue`."""
    flags: list[str] = []
    rest = list(arguments)
    while rest and (name := rest[0].partition("=")[0]) in (*WITH_VALUE, *WITHOUT_VALUE):
        flags.append(rest.pop(0))
        if name in WITH_VALUE and "=" not in flags[-1]:
            if not rest:
                raise MissingValue(name)
            flags[-1] += f"={rest.pop(0)}"
    return flags, rest


def behind_verb(flags: Sequence[str], command: Sequence[str], *, has_verbs: bool) -> list[str]:
    """The command with the flags behind its verb; a command without verbs takes only the address."""
    if has_verbs:
        return [*command[:2], *(flags if len(command) > 1 else ()), *command[2:]]
    url = [flag.replace(ADMIN_URL, "--url", 1) for flag in flags if flag.startswith(ADMIN_URL)]
    return [*command[:1], *url, *command[1:]]
