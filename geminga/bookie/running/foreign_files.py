"""Whether entry logs and journals are those of their directories, by their headers. Blocking; reads only.

A record says nothing of its broker. Entries of a copied file would be served as one's own where ids are the
same, or hide one's own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from geminga.bookie.entry_logs.entry_log_format import LogHeader
from geminga.bookie.entry_logs.log_ends import check_names, log_headers
from geminga.bookie.journal.headers import owner_of
from geminga.bookie.records.file_names import (
    ENTRY_LOG_SUFFIX,
    JOURNAL_SUFFIX,
    entry_log_directory,
    entry_log_path,
    ids_in,
    journal_directory,
    journal_path,
)
from geminga.bookie.records.owner import Owner
from geminga.bookie.running.directory_cookies import claimed_by
from geminga.bookie.running.directory_lists import DirectoryLists, absolute
from geminga.errors import StorageError
from geminga.storage.disk import Disk

FILES_NAMED_MAX = 20
"""The limit of files that one refusal names."""


class ForeignFiles(StorageError):
    """Entry logs or journals are there that belong to another directory. Nothing was written."""


class ForeignFile(NamedTuple):
    path: str
    text: str
    """Whose it is, and where it belongs."""


class _Folder(NamedTuple):
    """The files of one kind of one directory, with what their headers say."""

    path: str
    kind: str
    """As the cookie calls the directory's position."""
    position: int
    owners: dict[str, Owner | None]
    """By path."""


def check_headers(disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str) -> None:
    """Raise ForeignFiles if an entry log or journal says that it is of another directory or instance, and
    MisnamedLogs if a log has another one's name. The texts say what to do. An `instance_id` of "" is not
    known: see `instance_in`. A file of an earlier version, or with a damaged header, counts as right.
    """
    logs = _log_headers(disk, data_dir, lists)
    foreign = list(_foreign(disk, data_dir, lists, instance_id, logs))
    if foreign:
        lines = [
            f"{data_dir}: entry logs or journals are there that belong elsewhere. Their messages would be "
            "served as this broker's own, or hide its own. Nothing was written or deleted. Move these files "
            "out of their directories, put this broker's own files of these names back if there were any, "
            "and start again:",
            *(f"  {each.path}: {each.text}" for each in foreign[:FILES_NAMED_MAX]),
        ]
        if len(foreign) > FILES_NAMED_MAX:
            lines.append(f"  ... and {len(foreign) - FILES_NAMED_MAX} more")
        raise ForeignFiles("\n".join(lines))
    for directory, headers in logs.items():
        check_names(directory, headers)


def foreign_files(disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str) -> list[ForeignFile]:
    """The files for which `check_headers` raises ForeignFiles."""
    return list(_foreign(disk, data_dir, lists, instance_id, _log_headers(disk, data_dir, lists)))


def instance_in(disk: Disk, data_dir: str, lists: DirectoryLists) -> str:
    """The instance id in the directories' cookies, or else the one that most of their files name; "" if
    nothing says.
    """
    # A new id beside files that have one would make the next start refuse all of them.
    claimed = claimed_by(disk, data_dir, lists)
    if claimed:
        return claimed
    folders = _folders(disk, data_dir, lists, _log_headers(disk, data_dir, lists))
    owners = (owner for folder in folders for owner in folder.owners.values())
    named = Counter(owner.instance_id for owner in owners if owner is not None)
    return next((instance_id for instance_id, _ in named.most_common(1)), "")


_Headers = dict[str, dict[int, LogHeader | None]]
"""By folder and log id."""


def _log_headers(disk: Disk, data_dir: str, lists: DirectoryLists) -> _Headers:
    folders = [entry_log_directory(absolute(data_dir, name)) for name in lists.ledgers]
    return {
        path: log_headers(disk, path, ids_in(path, disk.list(path), ENTRY_LOG_SUFFIX))
        for path in folders
        if disk.exists(path)
    }


def _foreign(
    disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str, logs: _Headers
) -> Iterator[ForeignFile]:
    if not instance_id:
        return
    for folder in _folders(disk, data_dir, lists, logs):
        expected = Owner(instance_id, folder.position)
        for path, owner in folder.owners.items():
            if owner is not None and owner != expected:
                yield ForeignFile(path, _text(disk, data_dir, lists, folder, path, owner, expected))


def _text(
    disk: Disk,
    data_dir: str,
    lists: DirectoryLists,
    folder: _Folder,
    path: str,
    found: Owner,
    expected: Owner,
) -> str:
    said, wanted = (
        f"instance={each.instance_id} {folder.kind}={each.position}" for each in (found, expected)
    )
    directories = lists.ledgers if folder.kind == "ledgers" else lists.journals
    if found.instance_id == expected.instance_id and 0 < found.position <= len(directories):
        right = absolute(data_dir, directories[found.position - 1])
        right = os.path.join(right, os.path.basename(folder.path))
        name = os.path.basename(path)
        # Moved onto that one it would destroy it, which is often the file that belongs here.
        taken = f", which has a {name} of its own: exchange the two, or move this one away first"
        whose = f"of {right}{taken if disk.exists(os.path.join(right, name)) else ': move it there'}"
    else:
        whose = "of another data directory"
    return f"it says {said}, this directory is {wanted}: it is {whose}"


def _folders(disk: Disk, data_dir: str, lists: DirectoryLists, logs: _Headers) -> Iterator[_Folder]:
    for position, name in enumerate(lists.ledgers, 1):
        path = entry_log_directory(absolute(data_dir, name))
        owners = {
            entry_log_path(path, log_id): header.owner if header is not None else None
            for log_id, header in logs.get(path, {}).items()
        }
        yield _Folder(path, "ledgers", position, owners)
    for position, name in enumerate(lists.journals, 1):
        path = journal_directory(absolute(data_dir, name))
        ids = ids_in(path, disk.list(path), JOURNAL_SUFFIX) if disk.exists(path) else []
        paths = [journal_path(path, journal_id) for journal_id in ids]
        yield _Folder(path, "journal", position, {each: _journal_owner(disk, each) for each in paths})


def _journal_owner(disk: Disk, path: str) -> Owner | None:
    file = disk.open(path)
    try:
        return owner_of(file)
    finally:
        file.close()
