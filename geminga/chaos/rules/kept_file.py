"""The file of the rules that outlive their process: `docs/formats/directories.md`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from geminga.chaos.rules.rule import InvalidRule, Rule, check_rule
from geminga.storage.disk import RealDisk

FORMAT_VERSION: Final = 1

log = logging.getLogger("geminga.chaos")


class Kept(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A rule with what it has done so far."""

    rule: Rule
    hits: int = 0
    ends_ms: int = 0
    """When its duration ends, by the machine's clock; 0: it has none."""


class _Content(msgspec.Struct, frozen=True, rename="camel"):
    format_version: int
    rules: list[Kept]


class KeptFile:
    """All calls block."""

    def __init__(self, disk: RealDisk, path: str, aside: str) -> None:
        """`aside`: where a file goes that makes no sense."""
        self._disk = disk
        self._path = path
        self._aside = aside

    def read(self) -> list[Kept]:
        """The rules that an earlier process has kept. A file that makes no sense is moved aside."""
        if not self._disk.exists(self._path):
            return []
        try:
            content = msgspec.json.decode(self._disk.read_file(self._path), type=_Content)
            if content.format_version != FORMAT_VERSION:
                raise InvalidRule(f"expected format {FORMAT_VERSION}, not {content.format_version}")
            _check(content.rules)
        except (msgspec.MsgspecError, InvalidRule, KeyError, UnicodeDecodeError) as error:
            self._disk.rename(self._path, self._aside)
            log.warning(
                "%s: no rule of it is in force, it is moved to %s: %s", self._path, self._aside, error
            )
            return []
        return content.rules

    def write(self, rules: Sequence[Kept]) -> None:
        """Durable on return. Without rules there is no file. Raises StorageError."""
        if rules:
            content = _Content(FORMAT_VERSION, list(rules))
            self._disk.replace_file(self._path, msgspec.json.encode(content) + b"\n")
        elif self._disk.exists(self._path):
            self._disk.unlink(self._path)
            self._disk.sync_directory(os.path.dirname(self._path))


def _check(rules: Sequence[Kept]) -> None:
    """Raises InvalidRule, or KeyError for a place or kind that there is not."""
    ids = set()
    for one in rules:
        check_rule(one.rule)
        if not (one.rule.keep and one.rule.id) or one.rule.id in ids or one.hits < 0:
            raise InvalidRule(
                f"{one.rule.id!r}: expected rules to keep, with hits, each with an id of its own"
            )
        ids.add(one.rule.id)
