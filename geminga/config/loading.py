"""Builds a `Config` from the user's settings.

There are four sources, and a later one overrides an earlier one: the default of the field (the image has some
of its own, `container.py`), a file in Java properties syntax, the environment (a plain key, or one with the
prefix `PULSAR_PREFIX_`, as in Pulsar's container images), and flags. No source is silently wrong: an invalid
value or an unknown key is an error that names its source and the allowed values. A key that Pulsar knows and
this broker does not serve is accepted and reported once.

An empty value means "not set", as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from geminga.config.config import Config, ConfigError
from geminga.config.file import ConfigFile, Property
from geminga.config.memory_budget import beyond_budget
from geminga.config.operator_token import NO_OPERATOR_TOKEN, OperatorToken, operator_token
from geminga.config.relations import broken_relations
from geminga.config.values import Setting, parse, settings

ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"


CONTAINER_VARIABLE = "GEMINGA_CONTAINER"
"""Set by the image of the container."""


def is_container(environment: Mapping[str, str]) -> bool:
    return bool(environment.get(CONTAINER_VARIABLE))


class Loaded(NamedTuple):
    config: Config
    notices: list[str]
    """Notices that need no action of the user, each to be logged once."""
    operator_token: OperatorToken = NO_OPERATOR_TOKEN


OLD_KEYS = {"journalDirectory": "journalDirectories"}
"""Keys that BookKeeper still accepts, and their current names."""


def _is_utf_8(text: str) -> bool:
    """Whether a text is valid UTF-8. Arguments and environment may have any bytes; Python marks those that
    are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def load(
    *, file: ConfigFile | None = None, environment: Mapping[str, str], flags: Iterable[Property] = ()
) -> Loaded:
    """Read and check everything. Raises `ConfigError` with all problems, not only the first.

    `flags` are properties whose `source` is the flag's own spelling.
    """
    known = settings()
    problems: list[str] = []
    notices: list[str] = []
    unserved: dict[str, Property] = {}
    values: dict[str, Any] = {}

    strict = [*(file.properties if file else ()), *flags]
    ordered = [*(file.properties if file else ()), *_from_environment(environment, known), *flags]
    token = NO_OPERATOR_TOKEN
    try:
        token = operator_token(environment)
    except ValueError as error:
        problems.append(str(error))
    # The present key wins over the old one, wherever each is given.
    ordered.sort(key=lambda given: given.key not in OLD_KEYS)
    for given in ordered:
        setting = known.get(OLD_KEYS.get(given.key, given.key))
        if setting is None:
            if _is_pulsar_key(given.key):
                unserved[given.key] = given
            elif given in strict:
                problems.append(_unknown(given, known))
            else:
                notices.append(f"{_unknown(given, known)} It is ignored.")
        elif not _is_utf_8(given.value):
            problems.append(f"{given.source}: the value of {given.key} is not UTF-8")
        elif given.value == "":
            values.pop(setting.attribute, None)
        else:
            try:
                values[setting.attribute] = parse(setting, given.value)
            except ValueError as error:
                problems.append(f"{given.source}: {given.key} = {given.value!r} is not allowed: {error}")
    if is_container(environment):
        from geminga.config.container import container_defaults  # no other start needs it

        of_container = container_defaults(environment)
        notices += of_container.notices
        for given in of_container.properties:
            values.setdefault(known[given.key].attribute, parse(known[given.key], given.value))
    config = Config(**values)
    if unserved:
        from geminga.config import foreign as config_foreign

        problems += config_foreign.problems(unserved, in_container=is_container(environment))
        notices += config_foreign.notices(unserved)
    if not problems:
        problems = broken_relations(config)
        too_large = beyond_budget(config)
        if too_large and "memory_mb" in values:
            problems.append(too_large)
        elif too_large:
            # A cache size without a budget, say in a file written for Pulsar, takes precedence.
            notices.append(f"{too_large}. The broker will take that much.")
    if problems:
        raise ConfigError(problems)
    return Loaded(config, notices, token)


def _from_environment(environment: Mapping[str, str], known: Mapping[str, Setting]) -> list[Property]:
    """Plain keys first, then those with the prefix: in Pulsar's images the prefix wins, too."""
    plain: list[Property] = []
    prefixed: list[Property] = []
    for name, value in environment.items():
        source = f"environment variable {name}"
        if name.startswith(ENVIRONMENT_PREFIX):
            prefixed.append(Property(name.removeprefix(ENVIRONMENT_PREFIX), value.strip(), source))
        elif name in known or (name[:1].islower() and not name.islower() and _is_pulsar_key(name)):
            plain.append(Property(name, value.strip(), source))
    return plain + prefixed


def _is_pulsar_key(key: str) -> bool:
    from geminga.config.foreign import (
        is_pulsar_key,
    )  # 900 names that a start without foreign keys never needs

    return is_pulsar_key(key)


def _unknown(given: Property, known: Mapping[str, Setting]) -> str:
    import difflib

    from geminga.config.keys import PULSAR_KEYS

    if given.bare:
        return f"{given.source}: expected key=value, not {(given.key + ' ' + given.value).strip()!r}."
    lower = {key.lower(): key for key in (*PULSAR_KEYS, *known)}
    near = difflib.get_close_matches(given.key.lower(), lower, n=1, cutoff=0.8)
    hint = f" Did you mean {lower[near[0]]}?" if near else ""
    return f"{given.source}: unknown key {given.key!r}.{hint}"
