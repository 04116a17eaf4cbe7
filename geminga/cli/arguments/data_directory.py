"""The default data directory, and what cannot be one."""

from __future__ import annotations

import os
import sys


def default_data_dir() -> str:
    """The user's data folder, by the custom of the system."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Application Support", "geminga")
    if sys.platform == "win32":
        return os.path.join(os.environ.get("LOCALAPPDATA") or home, "geminga")
    given = os.environ.get("XDG_DATA_HOME", "")
    # The specification says to ignore a relative path.
    return os.path.join(given if os.path.isabs(given) else os.path.join(home, ".local", "share"), "geminga")


def no_directory(path: str) -> str | None:
    """What is at `path`, or above it, and is neither a directory nor a link to one; None: nothing is."""
    path = os.path.abspath(path)
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) else path
