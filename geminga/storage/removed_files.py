"""Writes files again that something else has removed while this process still has them open. Blocking.

A removed file lives as long as a descriptor of it. It cannot get its name back (Linux links no file whose
last name is gone), so its bytes are copied to a new file of that name.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

from geminga.errors import StorageError
from geminga.limits import MIB
from geminga.storage.disk import Disk, File
from geminga.storage.disk_errors import translated
from geminga.storage.real_file import RealFile

UNFINISHED: Final = ".tmp"
"""The suffix of a copy that is not complete. No part of Geminga reads such a file."""
_DESCRIPTORS = "/proc/self/fd"
_REMOVED = " (deleted)"
"""Linux puts this behind the former name of a file that has none any more."""


def is_cut(disk: Disk, path: str, bytes_min: int) -> bool:
    """Whether a file is at the path and shorter than what this process knows to be in it. Only for files that
    this process never makes shorter.
    """
    size = disk.size(path)
    return size is not None and size < bytes_min


def write_again(disk: Disk, file: File, path: str) -> None:
    """Copy all bytes of the open `file` to `path`, which is replaced if it exists. Durable on return, the
    name included; a crash before leaves nothing at `path`. Raises StorageError.
    """
    unfinished = path + UNFINISHED
    if disk.exists(unfinished):
        disk.unlink(unfinished)
    copy = disk.create(unfinished)
    try:
        # The length by reading, since some files are opened by other code that appends to them.
        offset = 0
        while data := file.pread(offset, MIB):
            copy.pwrite(offset, data)
            offset += len(data)
        copy.sync()
    except StorageError:
        disk.unlink(unfinished)
        raise
    finally:
        copy.close()
    disk.rename(unfinished, path)
    disk.sync_directory(os.path.dirname(path) or ".")


def open_removed(path: str) -> File | None:
    """A removed file that this process, or a library in it, still has open: opened once more. None if there
    is no such descriptor, and on systems other than Linux, which have no way to it.
    """
    if not sys.platform.startswith("linux"):
        return None
    # The system shows the path without links; the directory itself is still there.
    wanted = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) + _REMOVED
    for number in os.listdir(_DESCRIPTORS):
        link = os.path.join(_DESCRIPTORS, number)
        with contextlib.suppress(OSError):  # closed since it was listed
            if os.readlink(link) == wanted:
                with translated("open again", path):
                    return RealFile(path, os.open(link, os.O_RDONLY | os.O_CLOEXEC))
    return None
