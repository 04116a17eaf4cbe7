"""Accept connections on one listening socket and give each a task of its own."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable

import trio

log = logging.getLogger("geminga.broker")

ACCEPT_BACKLOG = 1024
ACCEPT_RETRY_SECONDS = 0.1
OVERLOAD_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
"""Too many files, or no memory for one more socket: wait a little, the others are served on."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host, one per address it resolves to; port 0 picks one free port for all.

    Raises `OSError` when an address is taken or not this machine's.
    """
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            sock.bind((address[0], taken, *address[2:]))
            sock.listen(ACCEPT_BACKLOG)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


async def accept_forever(
    listener: socket.socket, nursery: trio.Nursery, handle: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Hand every accepted socket to `handle` in a task of `nursery`; `handle` closes it."""
    with listener:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                continue
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno not in OVERLOAD_ERRNOS:
                    raise
                log.warning("cannot accept a connection now: %s", error)
                await trio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                sock.close()  # reset by its peer meanwhile
                continue
            nursery.start_soon(handle, sock)
            await trio.lowlevel.checkpoint()
