"""The argument parser of every command, and the exit codes that all commands share."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

STARTED_S = time.monotonic()
"""When the program's own code began; start-up is counted from here."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOTHING = 3
"""There was nothing to receive within the time, or less than was asked for."""
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141
"""As the shell reports a program that a closed pipe ended."""


class Parser(argparse.ArgumentParser):
    """No abbreviations, errors in one line, and for an unknown flag the one that was probably meant."""

    PROGRAM = "geminga"
    """What commands call themselves that may also be called by another name."""

    @staticmethod
    def failure(command: str, error: Exception) -> str:
        """What standard error gets of a request that failed."""
        return f"{command}: {error}"

    def __init__(
        self, prog: str, description: str, taken_by: Callable[[str], str | None] = lambda _: None
    ) -> None:
        """`taken_by` names the command that takes a flag which this one does not; None: there is none."""
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self._taken_by = taken_by

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, invalid_choice(str(value), known))

    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(self._with_negative_values(arguments))
        if unknown:
            self.error(self._explain(unknown))
        return parsed

    def _with_negative_values(self, arguments: Sequence[str]) -> list[str]:
        """`--delay -5s` as `--delay=-5s`, so that the value is refused and not taken for a flag."""
        joined: list[str] = []
        for given in arguments:
            action = self._option_string_actions.get(joined[-1]) if joined else None
            if given[:1] == "-" and given[1:2].isdigit() and action is not None and action.nargs != 0:
                joined[-1] += given if len(joined[-1]) == 2 else f"={given}"
            else:
                joined.append(given)
        return joined

    def _explain(self, unknown: Sequence[str]) -> str:
        import difflib

        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        texts = []
        for given in unknown:
            name = given.partition("=")[0]
            # A word of a flag is meant for it, however unlike the two are: --at, of --deliver-at.
            near = [flag for flag in flags if name.strip("-") in flag.strip("-").split("-")[1:]]
            near = near if len(near) == 1 else difflib.get_close_matches(name, flags, n=1)
            if given.startswith("-") and (other := self._taken_by(name)):
                texts.append(f"unknown flag {given} ('{other}' takes it)")
            elif given.startswith("-"):
                texts.append(f"unknown flag {given}" + (f" (did you mean {near[0]}?)" if near else ""))
            else:
                texts.append(f"unexpected argument {given!r}")
        return ", ".join(texts)


def invalid_choice(given: str, known: Sequence[str]) -> str:
    """What to tell of a value that is none of those known, with the one that was probably meant."""
    import difflib

    near = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"invalid choice: {given!r} (choose from {', '.join(known)}){hint}"
