"""The default data directory, and what cannot be one."""

from __future__ import annotations

import argparse
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


def named(text: str) -> str:
    """For argparse: a path of at least one character. An unset variable in a script gives none, and the
    default is the user's own data.
    """
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; leave the option out for the default directory")
    return text


def no_directory(path: str) -> str | None:
    """What is at `path`, or above it, and is neither a directory nor a link to one; None: nothing is."""
    path = os.path.abspath(path)
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) else path
