"""Claiming a bookie's directories: their cookies looked at, or made at the first start, and their locks
taken. Blocking.
"""

from __future__ import annotations

import contextlib

from geminga.bookie.index.database import NOTE, REBUILT
from geminga.bookie.records.file_names import entry_log_directory, journal_directory
from geminga.bookie.running.directory_lists import (
    COOKIE,
    COOKIE_BYTES_MAX,
    DEFAULT,
    DirectoryLists,
    ForeignLists,
    absolute,
    check_cookie,
    check_new,
    encode_cookie,
    owner_of,
    role_of,
)
from geminga.storage.disk import Disk


def claim_directories(
    disk: Disk,
    data_dir: str,
    lists: DirectoryLists,
    instance_id: str,
    held: contextlib.ExitStack,
    *,
    first: bool,
) -> None:
    """All directories of the lists are this instance's on return, and locked until `held` lets go.

    With `first` the lists are not recorded yet: directories are made and get their cookies, durable on
    return, so the lists may be recorded then. A start that was cut short in between begins
    again. ForeignLists if one is not ours to use; then nothing was written to that one.
    """
    for directory in lists.all():
        if directory == DEFAULT:
            continue  # the data directory's lock holds it, and `claim_default_directory` looks at its cookie
        path, role = absolute(data_dir, directory), role_of(directory, lists)
        cookie = _cookie(disk, path)
        if not first:
            check_cookie(path, cookie, instance_id, role)
        elif disk.exists(path):
            check_new(path, disk.list(path), cookie, instance_id)
        else:
            disk.make_directory(path)
        # Locked before the cookie is written: two brokers that start with one empty directory must not both
        # claim it.
        held.callback(disk.lock(path).release)
        if first:
            disk.replace_file(f"{path}/{COOKIE}", encode_cookie(instance_id, role))


def what_is_gone(disk: Disk, data_dir: str, lists: DirectoryLists) -> str:
    """What to tell the operator if the metadata knows ledgers, but the directory of their entries or of their
    index is not there or empty; "" if all are there.

    A directory without a cookie counts as there if it has files: it was made before it got one. An index that
    is damaged, or in the middle of being replaced, is another matter (`IndexDatabase`).
    """
    default = absolute(data_dir, DEFAULT)
    if DEFAULT in lists.all() and _cookie(disk, default) is None and not has_bookie_files(disk, default):
        # An unmounted disk leaves an empty mount point. Taken for a new bookie it would get new entries
        # beside metadata that knows the old ones, and hide them when it is mounted again.
        return _gone(data_dir, default, "the directory with their entries")
    for path in (journal_directory(absolute(data_dir, name)) for name in lists.journals):
        if not (disk.exists(path) and disk.list(path)):  # a bookie never is without a journal
            return _gone(data_dir, path, "the directory of their journals")
    for path in (entry_log_directory(absolute(data_dir, name)) for name in lists.ledgers):
        if not disk.exists(path):
            return _gone(data_dir, path, "the directory of their entry logs")
    for path in (index_directory(data_dir, name) for name in lists.ledgers):
        # Between two renames of a replacement the index itself is missing for a moment; a crash there is no
        # lost disk.
        is_being_rebuilt = disk.exists(path + REBUILT) or disk.exists(path + NOTE)
        if not is_being_rebuilt and not (disk.exists(path) and disk.list(path)):
            return (
                f"{path}: the metadata knows ledgers, but their index is gone: its disk is not mounted, or "
                "it was moved or deleted. Put it back; without it 'geminga bookie rebuild-index --data-dir "
                f"{data_dir}' rebuilds it from the entry logs. Nothing was written"
            )
    return ""


def _gone(data_dir: str, path: str, what: str) -> str:
    return (
        f"{path}: the metadata knows ledgers, but {what} is gone or empty: its disk is not mounted, or it "
        "was moved or deleted. Put it back; nothing was written. If it is lost for good, 'geminga bookie "
        f"rebuild-index --data-dir {data_dir}' makes what there is readable, and says what is missing"
    )


def check_owners(disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str) -> None:
    """ForeignLists if a directory's cookie is another instance's: then the metadata says nothing about what
    is in it. Reads only; a cookie that is missing or damaged is for those that claim the directories.
    """
    for directory in lists.all():
        path = absolute(data_dir, directory)
        cookie = _cookie(disk, path)
        owner = owner_of(cookie) if cookie is not None else ""
        # Asked before ledgers are compared: of two mixed data directories every ledger would look unrecorded,
        # and the advice to restore them would mix the topics of both.
        if owner and owner != instance_id:
            raise ForeignLists(
                f"{path}: the directory belongs to another instance than the metadata (its cookie says "
                f"instance={owner}; the metadata is of instance={instance_id}): they are of two data "
                "directories. Put those together that belong together; nothing was read or written"
            )


def claim_default_directory(disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str) -> None:
    """The directory inside the data directory is this instance's on return, if the lists name it: one that is
    new, or of before it had a cookie, gets one, durable. The data directory's lock holds it, too.

    ForeignLists for the cookie of another instance; nothing was written then.
    """
    if DEFAULT not in lists.all():
        return
    path, role = absolute(data_dir, DEFAULT), role_of(DEFAULT, lists)
    cookie = _cookie(disk, path)
    if cookie is not None:
        check_cookie(path, cookie, instance_id, role)
        return
    disk.make_directory(path)
    disk.replace_file(f"{path}/{COOKIE}", encode_cookie(instance_id, role))


def has_bookie_files(disk: Disk, path: str) -> bool:
    """Whether the directory has journals or entry logs, with a cookie or of before there were any."""
    directories = (journal_directory(path), entry_log_directory(path))
    return any(disk.exists(directory) and disk.list(directory) for directory in directories)


def claimed_by(disk: Disk, data_dir: str, lists: DirectoryLists) -> str:
    """The id of the instance that the directories' cookies name; "" if no directory has a right one."""
    for directory in lists.all():
        if cookie := _cookie(disk, absolute(data_dir, directory)):
            instance_id = owner_of(cookie)
            if instance_id:
                return instance_id
    return ""


def _cookie(disk: Disk, path: str) -> bytes | None:
    file = f"{path}/{COOKIE}"
    if not disk.exists(path) or not disk.exists(file):
        return None
    cookie = disk.open(file)
    try:
        return cookie.pread(0, COOKIE_BYTES_MAX)
    finally:
        cookie.close()


def index_directory(data_dir: str, directory: str) -> str:
    """Where a ledger directory's index is; the default one's has its place in the data directory."""
    return absolute(data_dir, "index" if directory == DEFAULT else f"{directory}/index")
