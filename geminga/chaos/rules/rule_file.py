"""Rules as files have them: TOML, with lengths as text. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geminga.chaos.rules.places import kind_of
from geminga.chaos.rules.rule import InvalidRule, Rule, parse_rule
from geminga.units import DURATION_FORMS, duration_ms, signed_ms

_LENGTHS: Final = frozenset({"for", "latency", "jitter", "step"})


def fields_of(written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a rule, from `fault = "PLACE/KIND"`, `for`, `latency`, `jitter` and `step` as texts, and
    all others as they are. Raises ValueError, with the name of the field.
    """
    place, slash, kind = str(written.get("fault", "")).partition("/")
    if not slash:
        raise ValueError("fault: expected \"PLACE/KIND\"; 'geminga fault places' lists them")
    found: dict[str, Any] = {"place": place, "kind": kind}
    for name, value in written.items():
        try:
            if name in _LENGTHS and not isinstance(value, str):
                # A number alone would be seconds, beside fields such as `latencyMs`.
                raise ValueError(f"expected a duration as text, such as {DURATION_FORMS}, not {value!r}")
            if name == "for":
                found["durationMs"] = duration_ms(value)
            elif name in ("latency", "jitter"):
                found[f"{name}Ms"] = duration_ms(value)
            elif name == "step":
                found["stepMs"] = signed_ms(value)
            elif name != "fault":
                found[name] = value
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def rules_at_start(files: Mapping[str, str]) -> list[Rule]:
    """The rules of a start, from the texts of files by their names. A rule without an id gets `s1`, `s2`, ...
    by its place among all of them. Raises InvalidRule, which names file, rule and field.
    """
    found: dict[str, Rule] = {}
    number = 0
    for name, text in files.items():
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidRule(f"{name}: {error}") from None
        listed = content.pop("faults", None)
        if content:
            raise InvalidRule(f"{name}: there is no {next(iter(content))!r}; a file of rules has [[faults]]")
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise InvalidRule(f'{name}: expected [[faults]], each with fault = "PLACE/KIND"')
        for place, written in enumerate(listed, 1):
            number += 1
            where = f"{name}: rule {place} ({str(written.get('fault', 'no fault'))[:100]})"
            try:
                rule = parse_rule(fields_of(written), at_start=True)
                if kind_of(rule).at_once:
                    raise InvalidRule("it acts once on what is open, and nothing is when a broker starts")
            except (InvalidRule, ValueError) as error:
                raise InvalidRule(f"{where}: {error}") from None
            rule = msgspec.structs.replace(rule, id=rule.id or f"s{number}")
            if rule.id in found:
                raise InvalidRule(f"{where}: id: another rule is named {rule.id}")
            found[rule.id] = rule
    return list(found.values())
