"""Divides the files that this process may have open between storage and ports.

The limit covers files and sockets together, and the storage must never run out: a journal that cannot open
its next file stops every publisher. So the maximum of the storage is reserved first, the ports share the
rest, and each port keeps to its share (`admission.py`).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import NamedTuple

from geminga.bookie.entry_logs.reader import OPEN_LOGS_MAX
from geminga.storage.disk import WORKERS_MAX
from geminga.storage.rocksdb_options import database_files_max

log = logging.getLogger("geminga.server")

# About a thousand connections once took every descriptor, and 257 idle ones locked all clients out of the
# admin port.
PROCESS_FILES = 32
"""Standard streams, the event loop's own files, listening sockets, locks, and files that Python opens to
import.
"""
JOURNAL_FILES = 3
LEDGER_DIRECTORY_FILES = OPEN_LOGS_MAX + 4
"""Entry logs open for reading, the current entry log, its directory, and two more for a compaction."""
DELIVERY_LOG_FILES = 2
WEB_CONNECTIONS_MAX = 256
CONNECTIONS_MIN = 16
"""The least number of connections for both ports together, however low the limit is; the storage may then
wait for its files.
"""
FILES_FEW = 1024
"""A limit below this is worth a warning."""
NO_LIMIT = 1 << 20
"""The value for a limit that the system does not set or does not report."""
MAC_FILES_MAX = 10_240
"""`OPEN_MAX`: macOS refuses a higher soft limit even if it reports an infinite hard limit."""


class Division(NamedTuple):
    """How many open files each part of the process may have."""

    reserved: int
    """Files for the storage and the process itself."""
    binary_connections_max: int
    web_connections_max: int


def divide(
    files_max: int, *, journals: int, ledger_directories: int, writes_delivery_log: bool = False
) -> Division:
    """Divide a limit. The metadata and each ledger directory have a database."""
    # The storage's share is its worst case: a journal that cannot open its next file stops every publisher.
    databases = 1 + ledger_directories
    reserved = (
        PROCESS_FILES
        + databases * database_files_max(files_max)
        + journals * JOURNAL_FILES
        + ledger_directories * LEDGER_DIRECTORY_FILES
        + WORKERS_MAX
        + writes_delivery_log * DELIVERY_LOG_FILES
    )
    connections = max(CONNECTIONS_MIN, files_max - reserved)
    # A share for each port, so that many connections of one cannot lock clients out of the other.
    web = min(WEB_CONNECTIONS_MAX, connections // 4)
    return Division(reserved, connections - web, web)


def warn_if_few(files_max: int, division: Division) -> None:
    if files_max < FILES_FEW:
        log.warning(
            "this process may have %d files open, which is room for %d connections of clients and %d of "
            "HTTP; raise the hard limit (ulimit -Hn, or LimitNOFILE of systemd) for more",
            files_max,
            division.binary_connections_max,
            division.web_connections_max,
        )


if sys.platform == "win32":

    def raise_files_max() -> int:
        return NO_LIMIT
else:
    import resource

    def raise_files_max() -> int:
        """Raise this process's soft limit of open files to the hard one, as a JVM does; what holds then."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in (hard, MAC_FILES_MAX):
            if wanted != soft != resource.RLIM_INFINITY and (wanted == hard or wanted > soft):
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                    soft = wanted
                    break
        return NO_LIMIT if soft == resource.RLIM_INFINITY else soft
