"""Claims a bookie's directories: checks their cookies, or creates them at the first start, and locks the
directories. Blocking.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

from geminga.bookie.index.database import NOTE, REBUILT, ForeignIndex, foreign_text
from geminga.bookie.index.index_format import (
    LEDGER_ID_MAX,
    OWNER_KEY,
    decode_owner,
    entry_key,
    split_key,
)
from geminga.bookie.records.file_names import entry_log_directory, journal_directory
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.owner import Owner
from geminga.bookie.running.directory_lists import (
    COOKIE,
    COOKIE_BYTES_MAX,
    DEFAULT,
    LOCK,
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
from geminga.storage.disk_errors import DirectoryInUse
from geminga.storage.key_value import KeyValue


def claim_directories(
    disk: Disk,
    data_dir: str,
    lists: DirectoryLists,
    instance_id: str,
    held: contextlib.ExitStack,
    *,
    first: bool,
) -> None:
    """Claim all directories of the lists for this instance; they are locked until `held` is closed.

    With `first` the lists are not recorded yet: directories are created and get their cookies, durable on
    return, so that the lists may be recorded afterwards. If a start is interrupted in between, the next
    start repeats this. Raises ForeignLists if a directory belongs to another instance; nothing was written
    to that directory.
    """
    for directory in lists.all():
        if directory == DEFAULT:
            continue  # `claim_default_directory` looks at it
        path, role = absolute(data_dir, directory), role_of(directory, lists)
        _refuse_if_living(disk, path)
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
    """The message for the operator if the metadata names ledgers, but the directory of their entries or of
    their index is missing or empty; "" if all directories exist.

    A directory without a cookie counts if it has files: it is older than cookies. `IndexDatabase` handles an
    index that is damaged or that is being replaced.
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
                f"{shlex.quote(data_dir)}' rebuilds it from the entry logs. Nothing was written"
            )
    return ""


def _gone(data_dir: str, path: str, what: str) -> str:
    return (
        f"{path}: the metadata knows ledgers, but {what} is gone or empty: its disk is not mounted, or it "
        "was moved or deleted. Put it back; nothing was written. If it is lost for good, 'geminga bookie "
        f"rebuild-index --data-dir {shlex.quote(data_dir)}' makes what there is readable, and says what is "
        "missing"
    )


def check_owners(disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str) -> None:
    """Check that the directories' cookies are this instance's. Raises ForeignLists otherwise, because the
    metadata does not describe such a directory. Reads only, and ignores missing or damaged cookies, which
    claiming handles.
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


def claim_default_directory(
    disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str, held: contextlib.ExitStack
) -> None:
    """Claim the directory inside the data directory, if the lists name it; it is locked until `held` is
    closed. A new directory, or one without a cookie, gets a durable cookie.

    Raises DirectoryInUse if another process holds it, ForeignLists for the cookie of another instance;
    nothing was written then.
    """
    if DEFAULT not in lists.all():
        return
    path, role = absolute(data_dir, DEFAULT), role_of(DEFAULT, lists)
    disk.make_directory(path)
    # The lock of the data directory is not enough: the directory may be a link to another one's, or a mount
    # of it, and two brokers would then write the same files.
    lock_default_directory(disk, data_dir, held)
    cookie = _cookie(disk, path)
    if cookie is not None:
        check_cookie(path, cookie, instance_id, role)
    else:
        disk.replace_file(f"{path}/{COOKIE}", encode_cookie(instance_id, role))


def lock_default_directory(disk: Disk, data_dir: str, held: contextlib.ExitStack) -> None:
    """Lock the directory inside the data directory until `held` is closed, if there is one. Raises
    DirectoryInUse.
    """
    path = absolute(data_dir, DEFAULT)
    if disk.exists(path):
        with _living_neighbour_named():
            held.callback(disk.lock(path).release)


def lock_folders(disk: Disk, data_dir: str, lists: DirectoryLists, held: contextlib.ExitStack) -> None:
    """Lock the folders of journals and entry logs until `held` is closed. Each of them may be a link to
    another broker's, or a mount of it, in a directory that is not. Raises DirectoryInUse.
    """
    for path in _folders(data_dir, lists):
        if disk.exists(path):
            with _living_neighbour_named():
                held.callback(disk.lock_folder(path).release)


def _folders(data_dir: str, lists: DirectoryLists) -> list[str]:
    journals = [journal_directory(absolute(data_dir, name)) for name in lists.journals]
    return [*journals, *(entry_log_directory(absolute(data_dir, name)) for name in lists.ledgers)]


def refuse_living_neighbours(disk: Disk, data_dir: str, lists: DirectoryLists) -> None:
    """Raise DirectoryInUse if one of these directories is in use by another process. The caller holds the
    data directory's lock, and none of theirs. Writes nothing but a process id into the locks' files.
    """
    for directory in dict.fromkeys((DEFAULT, *lists.all())):
        _refuse_if_living(disk, absolute(data_dir, directory))
    with contextlib.ExitStack() as held:
        lock_folders(disk, data_dir, lists, held)


def _refuse_if_living(disk: Disk, path: str) -> None:
    # A directory is locked before it gets its cookie, so one with a cookie has the file of a lock. A file of
    # that name beside no cookie may be anything.
    if disk.exists(f"{path}/{LOCK}") and owner_of(_cookie(disk, path) or b""):
        with _living_neighbour_named():
            disk.lock(path).release()


@contextlib.contextmanager
def _living_neighbour_named() -> Iterator[None]:
    try:
        yield
    except DirectoryInUse as error:
        raise DirectoryInUse(
            f"{error}. That is a running broker, or a tool that works on its files: nothing is lost, and "
            "nothing was read or written here"
        ) from None


def has_bookie_files(disk: Disk, path: str) -> bool:
    """Whether the directory has journals or entry logs, with or without a cookie."""
    directories = (journal_directory(path), entry_log_directory(path))
    return any(disk.exists(directory) and disk.list(directory) for directory in directories)


def claimed_by(disk: Disk, data_dir: str, lists: DirectoryLists) -> str:
    """The instance id in the directories' cookies; "" if no directory has a valid cookie."""
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


def owner_in(lists: DirectoryLists, directory: str, instance_id: str) -> Owner | None:
    """The owner of a ledger directory's index; None if the instance is not known, for want of metadata and
    cookies.
    """
    return Owner(instance_id, role_of(directory, lists).ledgers) if instance_id else None


def check_index(
    values: KeyValue, data_dir: str, lists: DirectoryLists, directory: str, expected: Owner | None
) -> None:
    """Check that the database is the index of this ledger directory, which is `expected` to own it. Otherwise
    raises ForeignIndex, whose text has both directories and the next step. Reads only.
    """
    found = _owner_of_index(values, lists, expected)
    if expected is None or found is None or found == expected:
        return
    path, flags = index_directory(data_dir, directory), f"--data-dir {shlex.quote(data_dir)}"
    whose = "that of another data directory"
    if found.instance_id == expected.instance_id and 0 < found.position <= len(lists.ledgers):
        whose = f"that of {index_directory(data_dir, lists.ledgers[found.position - 1])}"
    # Fatal, although the entry logs are whole: entries that this index does not name would be missing, and
    # logs that it does not name would be deleted as garbage.
    raise ForeignIndex(
        f"{path}: {foreign_text(found, expected)}: it is {whose}. If indexes were renamed, copied or mounted "
        "under each other's names, rename them back; if the right one is gone, 'geminga bookie rebuild-index "
        f"{flags}' makes it out of the entry logs. Nothing was written"
    )


def _owner_of_index(values: KeyValue, lists: DirectoryLists, expected: Owner | None) -> Owner | None:
    stored = values.get(OWNER_KEY)
    if stored is not None:
        return decode_owner(stored)
    if expected is None:
        return None
    # One of an earlier version says nothing of itself, but all its ledgers are of one directory.
    row = next(values.scan(entry_key(0, 0), entry_key(LEDGER_ID_MAX, 0)), None)
    if row is None:
        return None
    return expected._replace(position=directory_index(split_key(row[0])[0], len(lists.ledgers)) + 1)


def index_directory(data_dir: str, directory: str) -> str:
    """The path of a ledger directory's index. The default directory's index is in the data directory."""
    return absolute(data_dir, "index" if directory == DEFAULT else f"{directory}/index")
