"""Recorded answers of a real Pulsar: how their files are read and written, and the command that records anew.

A recording is a JSON file: `version` of the broker that was asked, those of its `settings` that the answers
depend on, and `cases`: a list of steps or answers for each name, in a format that each recorder defines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.recordings.real_broker import UnfitBroker, checked_version

UNFIT_EXIT_CODE = 2
Cases = Mapping[str, Sequence[Any]]
Play = Callable[[str, str, list[str]], Cases]
"""(service URL, web URL, names of cases) -> what the broker answered, for each of these names."""


class Recorded(NamedTuple):
    version: str
    settings: Mapping[str, str]
    cases: Cases


@dataclass(frozen=True)
class Recording:
    """A file of answers, and the broker settings they depend on, as the runtime configuration shows them."""

    path: Path
    settings: Mapping[str, str]

    def read(self) -> Recorded:
        return Recorded(**json.loads(self.path.read_text()))

    def write(self, recorded: Recorded) -> None:
        """Replace the file in one step: a reader sees all of the old one or all of the new one."""
        settings = json.dumps(recorded.settings, indent=1).replace("\n", "\n ")
        cases = ",\n".join(
            f"  {json.dumps(name)}: [\n" + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]"
            for name, rows in recorded.cases.items()
        )
        text = (
            f'{{\n "version": {json.dumps(recorded.version)},\n "settings": {settings},\n'
            f' "cases": {{\n{cases}\n }}\n}}\n'
        )
        assert json.loads(text) == json.loads(json.dumps(recorded._asdict()))
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            unfinished.write_text(text)
            unfinished.replace(self.path)
        finally:
            unfinished.unlink(missing_ok=True)

    def main(self, names: Sequence[str], play: Play, arguments: Sequence[str] | None = None) -> None:
        """Record these cases anew. Exit with code 2 before the first request if the broker is unfit."""
        parser = argparse.ArgumentParser(description=f"Write a real Pulsar's answers to {self.path.name}.")
        parser.add_argument("service_url", help="pulsar://localhost:6650")
        parser.add_argument("web_url", help="http://localhost:8080")
        parser.add_argument("beginnings", nargs="*", help="only cases whose names begin so; others are kept")
        options = parser.parse_args(arguments)
        chosen = [name for name in names if name.startswith(tuple(options.beginnings or [""]))]
        try:
            if not chosen:
                raise UnfitBroker(f"no case begins with {options.beginnings}")
            version = checked_version(options.service_url, options.web_url, self.settings)
            kept = self._kept(version) if len(chosen) < len(names) else {}
        except UnfitBroker as unfit:
            print(f"{self.path.name} is left as it is: {unfit}", file=sys.stderr)
            raise SystemExit(UNFIT_EXIT_CODE) from unfit
        played = play(options.service_url, options.web_url, chosen)
        if unanswered := set(chosen) - set(played):
            raise RuntimeError(f"{self.path.name} is left as it is: no answers for {sorted(unanswered)}")
        cases = {**kept, **played}
        self.write(Recorded(version, self.settings, {name: cases[name] for name in names}))

    def _kept(self, version: str) -> Cases:
        """The answers of cases that are not asked again, if version and settings are still the same."""
        old = self.read()
        if (old.version, old.settings) != (version, self.settings):
            raise UnfitBroker(f"the other cases are of {old.version} {old.settings}: record all of them")
        return old.cases
