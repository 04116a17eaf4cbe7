"""Every file name of the bookie.

    <directory>/journal/<id>.journal       the write-ahead journal
    <directory>/entry-logs/<id>.log        entry logs

Ids are decimal, twenty digits, counted from 1, and never used twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from geminga.errors import StorageError

ID_MAX = (1 << 63) - 1
"""Ids have 64 bits in all formats; the id after the greatest must fit, too."""
JOURNAL_SUFFIX = ".journal"
ENTRY_LOG_SUFFIX = ".log"


def journal_directory(directory: str) -> str:
    return f"{directory}/journal"


def entry_log_directory(directory: str) -> str:
    return f"{directory}/entry-logs"


# Twenty digits, so that names sort as numbers do in `ls` and in every tool.
def journal_path(directory: str, journal_id: int) -> str:
    return f"{directory}/{journal_id:020d}{JOURNAL_SUFFIX}"


def entry_log_path(directory: str, log_id: int) -> str:
    return f"{directory}/{log_id:020d}{ENTRY_LOG_SUFFIX}"


def parse_id(name: str, suffix: str) -> int | None:
    """The id in a file name of this kind, or None for any other name."""
    stem = name.removesuffix(suffix)
    # `isdigit` alone is true for other scripts' digits, and for superscripts, on which `int` fails.
    return int(stem) if stem != name and stem.isascii() and stem.isdigit() else None


def ids_in(directory: str, names: Iterable[str], suffix: str) -> list[int]:
    """The ids of the files of this kind among the names in a directory, ascending. Raises StorageError if an
    id is above `ID_MAX`: no bookie has written such a file, and no later id would fit.
    """
    ids = []
    for name in names:
        number = parse_id(name, suffix)
        if number is not None and number > ID_MAX:
            raise StorageError(
                f"{directory}/{name}: the number in its name is larger than any that a bookie gives, "
                "so it is none of its files; move it elsewhere"
            )
        if number is not None:
            ids.append(number)
    return ids
