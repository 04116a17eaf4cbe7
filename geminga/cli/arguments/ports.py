"""Why a port could not be bound, and which process holds it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"


def describe_refusal(host: str, wanted: Iterable[tuple[str, int]]) -> list[str]:
    """A line for each of the (flag, port) pairs that cannot be listened on now; [] if all of them can."""
    lines = []
    for flag, port in wanted:
        number = refusal(host, port)
        if number == errno.EADDRINUSE:
            owner = owner_of(port) or "another program"
            lines.append(
                f"port {port} is already taken by {owner}; choose another with {flag} or stop that one"
            )
        elif number in (errno.EACCES, errno.EPERM):
            lines.append(f"port {port} needs more rights than this user has; choose another with {flag}")
        elif number:
            lines.append(f"port {port}: {os.strerror(number)}; choose another with {flag}")
    return lines


def refusal(host: str, port: int) -> int:
    """The errno with which listening on the port fails now; 0 if it does not."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(address)
                sock.listen(1)
            except OSError as error:
                return error.errno or errno.EIO
    return 0


def owner_of(port: int) -> str:
    """The process that listens on a TCP port, as `process 123 (java)`; "" if the system does not say."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(_target(link) in sockets for link in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:
            continue  # another user's process, or one that has just ended
    return ""


def _target(link: Path) -> str:
    """What a descriptor refers to; "" if it was closed since it was listed. The one that the listing itself
    used always was, when the process is this one.
    """
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
