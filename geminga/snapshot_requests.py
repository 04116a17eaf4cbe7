"""What a test asks of a broker's whole state: save it, restore it, empty it, seed it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from geminga.errors import GemingaError

SECONDS_MAX: Final = 600.0
ROOT: Final = "/geminga/snapshots"


class SnapshotFailed(GemingaError):
    """Why not; the broker's state is as before, but for what a seed has published."""


class SnapshotRequests(ABC):
    """A broker on this machine; all but `save_snapshot` and `seed` need one with `--chaos`."""

    @property
    @abstractmethod
    def web_url(self) -> str: ...

    def save_snapshot(self, directory: str | os.PathLike[str]) -> None:
        """Save the state in a new directory, or an empty one. Raises `SnapshotFailed`."""
        self._ask("save", directory)

    def restore_snapshot(self, directory: str | os.PathLike[str]) -> None:
        """Replace the state by a saved one; the broker serves again on return, on the same ports, and clients
        reconnect. A virtual clock goes back to the moment of the save. Raises `SnapshotFailed`.
        """
        self._check(self._ask("restore", directory))

    def reset(self) -> None:
        """Remove everything: on return it is as a new broker, with a clock of the same kind. Raises
        `SnapshotFailed`.
        """
        self._check(self._ask("reset"))

    def seed(self, file: str | os.PathLike[str]) -> None:
        """Create what a file names, TOML or JSON lines, and publish its messages. Raises `SnapshotFailed`."""
        command = [sys.executable, "-P", "-m", "geminga", "snapshot", "seed", os.fspath(file)]
        done = subprocess.run(
            [*command, "--url", self.web_url], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise SnapshotFailed(done.stderr.strip())

    def _ask(self, verb: str, directory: str | os.PathLike[str] | None = None) -> Any:
        body = {} if directory is None else {"directory": os.path.abspath(os.fspath(directory))}
        url = f"{self.web_url}{ROOT}/{verb}"
        request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST")
        try:
            # After a restore this follows the redirection to the report, which waits for the broker.
            with urlopen(request, timeout=SECONDS_MAX) as response:
                return json.loads(response.read())
        except HTTPError as error:
            try:
                reason = json.loads(error.read())["reason"]
            except (ValueError, KeyError, TypeError):
                reason = error.reason
            raise SnapshotFailed(str(reason)) from None

    def _check(self, report: Any) -> None:
        last = report["last"]
        if last["outcome"] != "done":
            raise SnapshotFailed(f"the state from before is back: {last['reason']}")
