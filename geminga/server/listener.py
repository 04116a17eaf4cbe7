"""Accepts connections on one listening socket and starts a task for each."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket

import trio

from geminga.server.admission import Admission, Handler

log = logging.getLogger("geminga.broker")

ACCEPT_BACKLOG = 1024
ACCEPT_RETRY_SECONDS = 0.1
OVERLOAD_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
"""Too many open files, or no memory for one more socket: wait a little; other connections are
still served.
"""


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host, one for each of its addresses; port 0 picks one free port for all.

    Raises `OSError` when an address is taken or is not this machine's.
    """
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            # A broker that was killed leaves connections in TIME_WAIT, and has to be able to start again at
            # once.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Or the socket of `::` would take the port of 0.0.0.0 as well, whose own `bind` then fails.
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


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the address."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


async def accept_forever(
    listener: socket.socket, nursery: trio.Nursery, admission: Admission, handle: Handler
) -> None:
    """Pass every accepted socket to `handle` in a task of `nursery`; `handle` closes it.

    At the bound of `admission`, a new connection is accepted once an idle one was closed for it, or one has
    left; until then it waits in the system's queue.
    """
    with listener:
        while True:
            if not admission.has_room():
                await trio.lowlevel.wait_readable(listener)
                await admission.make_room()
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
                # Waiting alone does not help if idle connections hold all descriptors.
                admission.close_longest_idle()
                log.warning("cannot accept a connection now: %s", error)
                await trio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            try:
                # Receipts are small writes: Nagle's algorithm would hold each back until the client has
                # acknowledged the one before.
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                sock.close()  # reset by its peer meanwhile
                continue
            nursery.start_soon(admission.enter().serve, sock, handle)
            # `accept` does not yield while connections are waiting: a thousand at once would hold up all
            # clients.
            await trio.lowlevel.checkpoint()
