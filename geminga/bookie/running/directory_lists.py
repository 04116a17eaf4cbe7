"""Which directories a bookie has, and whether they are those of the first start. Pure decisions.

The first start records the lists, which never change, because their order decides which directory a ledger
belongs to. Every directory has a cookie, as in BookKeeper: a small file with the instance's id and the
directory's positions in the lists. So an unmounted disk, two disks that have changed places, and a directory
of another instance are detected before anything is read or written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from geminga.errors import StorageError

# Inside the data directory, so that a copy of one directory is a whole broker; its lock and metadata cover
# it.
DEFAULT = "bookie"
"""The directory inside the data directory. One that is older than cookies gets a cookie at the next start.
"""
COOKIE = "cookie"
LOCK = "lock"
"""Held by the process that has the directory open."""
# Without these a fresh volume would be refused as foreign, which is what volumes of their own look like.
SYSTEMS_NAMES = frozenset({"lost+found", ".DS_Store", ".snapshot", ".zfs"})
"""Names that ext4, a Finder window, snapshots of a file server and ZFS create; a directory with nothing else
counts as empty.
"""
IGNORED = frozenset({COOKIE, f"{COOKIE}.tmp", LOCK, *SYSTEMS_NAMES})
"""Names that may exist in a directory before any file of the bookie."""
# A file of this name may be anything that an operator has put there; no more of it is read than a cookie has.
COOKIE_BYTES_MAX = 1024
_SAID_MAX = 120
_COOKIE_HEAD = "geminga bookie directory, format 1"


# The whole file has to match: a cookie cut short by a full disk must not pass for one with smaller numbers.
_COOKIE = re.compile(_COOKIE_HEAD.encode() + rb"\ninstance=[!-~]+\njournal=[0-9]+\nledgers=[0-9]+\n")


class ForeignLists(StorageError):
    """The directories are not those of the first start, or not in the state in which this instance left
    them.
    """


class RepeatedDirectory(ForeignLists):
    """The configuration itself is wrong: it names a directory twice."""


class DirectoryLists(NamedTuple):
    """Paths are absolute, or relative to the data directory for directories inside it, because that may be
    moved.
    """

    journals: tuple[str, ...] = (DEFAULT,)
    ledgers: tuple[str, ...] = (DEFAULT,)

    def all(self) -> list[str]:
        """All directories, each once."""
        return list(dict.fromkeys((*self.journals, *self.ledgers)))


class Role(NamedTuple):
    """A directory's number in each list, counted from 1; 0 if the list does not have it."""

    journal: int
    ledgers: int


# The place in the list is in the cookie, since ledgers are mapped by it: two disks that changed places would
# each be asked for the other's ledgers.
def role_of(directory: str, lists: DirectoryLists) -> Role:
    return Role(*(of.index(directory) + 1 if directory in of else 0 for of in lists))


def lists_from(data_dir: str, journals: Sequence[str], ledgers: Sequence[str]) -> DirectoryLists:
    """The lists as configured; an empty list means the default. Raises RepeatedDirectory."""
    lists = DirectoryLists(
        *(tuple(_normal(data_dir, path) for path in paths) or (DEFAULT,) for paths in (journals, ledgers))
    )
    for key, paths in zip(("journalDirectories", "ledgerDirectories"), lists, strict=True):
        if len(set(paths)) < len(paths):
            raise RepeatedDirectory(f"{key} names a directory twice: {_shown(paths)}")
    return lists


def _normal(data_dir: str, path: str) -> str:
    root, path = os.path.abspath(data_dir), os.path.abspath(path)
    return os.path.relpath(path, root).replace(os.sep, "/") if path.startswith(root + os.sep) else path


def absolute(data_dir: str, directory: str) -> str:
    return os.path.join(os.path.abspath(data_dir), directory)


def check_lists(recorded: DirectoryLists, wanted: DirectoryLists) -> None:
    """Check that the lists are equal, including their order. Otherwise raises ForeignLists, whose text has
    both lists and the next step.
    """
    keys = ("journalDirectories", "ledgerDirectories")
    for key, before, now in zip(keys, recorded, wanted, strict=True):
        if before != now:
            back = f"set {key}={','.join(before)}" if before != (DEFAULT,) else f"leave {key} out"
            raise ForeignLists(
                f"{key} has changed: since the first start it is {_shown(before)}, now it is {_shown(now)}. "
                "Which directory an entry is in follows from the list and its order, so neither can change; "
                f"{back}, or begin with an empty data directory"
            )


def _shown(paths: Sequence[str]) -> str:
    return f"[{', '.join(paths)}{', in the data directory' if paths == (DEFAULT,) else ''}]"


# ---- cookies


def encode_cookie(instance_id: str, role: Role) -> bytes:
    text = f"{_COOKIE_HEAD}\ninstance={instance_id}\njournal={role.journal}\nledgers={role.ledgers}\n"
    return text.encode()


def owner_of(cookie: bytes) -> str:
    """The id of the instance; "" if the cookie is damaged."""
    if not _COOKIE.fullmatch(cookie):
        return ""
    return cookie.split(b"\n")[1].partition(b"=")[2].decode()


def check_cookie(path: str, data: bytes | None, instance_id: str, role: Role) -> None:
    """Check the cookie of a directory in the recorded lists. `data` is None if there is no cookie."""
    if data is None:
        raise ForeignLists(
            f"{path}: there is no cookie of this bookie: the disk is not mounted, or the directory was moved "
            "or emptied. Put it back; nothing was read or written"
        )
    _check_owner(path, data, instance_id)
    if data != encode_cookie(instance_id, role):
        raise ForeignLists(
            f"{path}: this directory has another position in the lists of directories (its cookie says "
            f"{_said(data)}; it is listed as journal={role.journal} ledgers={role.ledgers}): "
            "two disks may have changed places"
        )


def check_new(path: str, names: Sequence[str], data: bytes | None, instance_id: str) -> None:
    """Check a directory that is used for the first time, or whose first start was interrupted."""
    if data is not None:
        _check_owner(path, data, instance_id)
    left = sorted(set(names) - IGNORED)
    if left:
        raise ForeignLists(
            f"{path}: a new bookie directory must be empty, and it has {left[0]!r}; name another one"
        )


def _check_owner(path: str, data: bytes, instance_id: str) -> None:
    if not _COOKIE.fullmatch(data):
        raise ForeignLists(
            f"{path}: the directory's cookie is damaged, or not one that this version writes (it says "
            f"{_said(data)}; this one is instance={instance_id}). Restore it; nothing was read or written"
        )
    if f"instance={instance_id}" not in data.decode(errors="replace").splitlines():
        raise ForeignLists(
            f"{path}: the directory belongs to another instance (its cookie says {_said(data)}; this one is "
            f"instance={instance_id}); name another one"
        )


def _said(data: bytes) -> str:
    """The cookie for a message: the fields of a valid one, else its escaped first bytes."""
    if _COOKIE.fullmatch(data):
        return " ".join(data.decode(errors="replace").split("\n")[1:]).strip()
    text = ascii(data[:_SAID_MAX].decode(errors="replace"))
    return "nothing" if not data else text + "..." * (len(data) > _SAID_MAX)
