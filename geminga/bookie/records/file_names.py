"""Every file name of the bookie, in one place.

    <directory>/journal/<id>.journal       the write-ahead journal
    <directory>/entry-logs/<id>.log        entry logs

Ids are decimal, twenty digits, counted from 1, and never used twice.
"""

from __future__ import annotations

JOURNAL_SUFFIX = ".journal"
ENTRY_LOG_SUFFIX = ".log"


def journal_directory(directory: str) -> str:
    return f"{directory}/journal"


def entry_log_directory(directory: str) -> str:
    return f"{directory}/entry-logs"


def journal_path(directory: str, journal_id: int) -> str:
    return f"{directory}/{journal_id:020d}{JOURNAL_SUFFIX}"


def entry_log_path(directory: str, log_id: int) -> str:
    return f"{directory}/{log_id:020d}{ENTRY_LOG_SUFFIX}"


def parse_id(name: str, suffix: str) -> int | None:
    """The id in a file name of this kind, or None for any other name."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and stem.isascii() and stem.isdigit() else None
