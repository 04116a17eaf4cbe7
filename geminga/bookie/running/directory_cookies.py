"""Claiming a bookie's directories: their cookies looked at, or made at the first start, and their locks
taken. Blocking.
"""

from __future__ import annotations

import contextlib

from geminga.bookie.running.directory_lists import (
    COOKIE,
    COOKIE_BYTES_MAX,
    DEFAULT,
    DirectoryLists,
    absolute,
    check_cookie,
    check_new,
    encode_cookie,
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
    return; whoever records the lists then may rely on them. A start that was cut short in between begins
    anew. ForeignLists if one is not ours to use; then nothing was written to that one.
    """
    for directory in lists.all():
        if directory == DEFAULT:
            continue  # the data directory's own record and lock speak for it
        path, role = absolute(data_dir, directory), role_of(directory, lists)
        cookie = _cookie(disk, path)
        if not first:
            check_cookie(path, cookie, instance_id, role)
        elif disk.exists(path):
            check_new(path, disk.list(path), cookie, instance_id)
        else:
            disk.make_directory(path)
        held.callback(disk.lock(path).release)
        if first:
            disk.replace_file(f"{path}/{COOKIE}", encode_cookie(instance_id, role))


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
