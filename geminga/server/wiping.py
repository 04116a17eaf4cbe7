"""`--wipe-data`: empties a data directory before a start."""

from __future__ import annotations

import os

from geminga.bookie.index.database import NOTE
from geminga.bookie.running.directory_cookies import claimed_by, has_bookie_files
from geminga.bookie.running.directory_lists import DEFAULT, LOCK, SYSTEMS_NAMES, DirectoryLists
from geminga.metadata.instance import ForeignDirectory
from geminga.server.fault_parts import DAMAGED, FAULTS
from geminga.server.metadata_check import METADATA
from geminga.server.snapshots.swap import MOVED, SWAP
from geminga.storage.disk import RealDisk

EVENTS = "events"
FAULT_FILES = {FAULTS, FAULTS + DAMAGED}


def wipe(disk: RealDisk, data_dir: str) -> list[str]:
    """Delete all that Geminga keeps in its data directory, and return the names. The caller holds the lock.
    Blocking.

    Raises ForeignDirectory, with nothing deleted, if the directory has anything else or is none of
    Geminga's. A crash leaves a part, which is no valid state; the next such start deletes the rest.
    """
    names = sorted(set(disk.list(data_dir)) - {LOCK, *SYSTEMS_NAMES})
    others = sorted(set(names) - {*MOVED, SWAP, EVENTS, *FAULT_FILES})
    if others:
        raise ForeignDirectory(
            f"{data_dir}: --wipe-data deletes nothing here: {others[0]!r} is not Geminga's; move it away, or "
            "name another directory"
        )
    is_ours = (
        claimed_by(disk, data_dir, DirectoryLists())
        or has_bookie_files(disk, os.path.join(data_dir, DEFAULT))
        or disk.exists(os.path.join(data_dir, METADATA, "CURRENT"))
    )
    if set(names) - {EVENTS, *FAULT_FILES} and not is_ours:
        raise ForeignDirectory(
            f"{data_dir}: --wipe-data deletes nothing here: this is no data directory of Geminga"
        )
    # The metadata last: as long as a part is left it says whose the directory is.
    for name in sorted(names, key=lambda name: name == METADATA):
        path = os.path.join(data_dir, name)
        if name in {f"index{NOTE}", *FAULT_FILES}:
            disk.unlink(path)
        else:
            disk.remove_tree(path)
    disk.sync_directory(data_dir)
    return names
