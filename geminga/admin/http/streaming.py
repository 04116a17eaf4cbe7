"""Answers that are written in parts: nothing of them is held but the part that is being sent.

The connection that asked draws its parts; the next one when its peer has taken the one before, so a peer that
does not read holds up no other, and `WRITE_SECONDS` ends it. A peer that closes its connection, or only its
sending half, while the first part is drawn is taken to be gone: the part is abandoned.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
import trio

from geminga.limits import KIB

T = TypeVar("T")

RECEIVE_BYTES: Final = 64 * KIB
NAMES_MAX: Final = 500
"""Items of a list of texts or numbers encoded at once: less than a tenth of a millisecond."""
PIECES_MAX: Final = 50
"""That are drawn for one part."""


def json_list(items: Sequence[object]) -> AsyncGenerator[bytes, None]:
    """A JSON array of small items."""
    return in_parts(_pieces_of(items))


def _pieces_of(items: Sequence[object]) -> Iterator[bytes]:
    separator = b"["
    for start in range(0, len(items), NAMES_MAX):
        yield separator + msgspec.json.encode(items[start : start + NAMES_MAX])[1:-1]
        separator = b","
    yield b"]" if items else b"[]"


def json_object(fields: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON object of fields, each of them a name with its value."""
    separator = b"{"
    for field in fields:
        yield separator + field
        separator = b","
    yield b"{}" if separator == b"{" else b"}"


async def in_parts(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Pieces of an answer, as parts. Each takes some hundredth of a millisecond to draw, or a few of them."""
    pending: list[bytes] = []
    for piece in pieces:
        pending.append(piece)
        if len(pending) >= PIECES_MAX:
            yield b"".join(pending)
            pending.clear()
    if pending:
        yield b"".join(pending)


async def unless_gone(
    stream: trio.SocketStream, keep: Callable[[bytes], None], work: Callable[[], Awaitable[T]]
) -> T:
    """What `work` returns or raises; it is cancelled when the peer closes its end.

    Raises `trio.BrokenResourceError` then. `keep` gets what the peer sends meanwhile, one
    chunk at most.
    """
    done: list[T] = []
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, stream, keep, nursery.cancel_scope)
        try:
            done.append(await work())
        except Exception as error:  # it leaves the nursery as itself, not in a group
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
    if not done:
        raise trio.BrokenResourceError("the peer is gone")
    return done[0]


async def _watch(stream: trio.SocketStream, keep: Callable[[bytes], None], scope: trio.CancelScope) -> None:
    try:
        data = await stream.receive_some(RECEIVE_BYTES)
    except trio.BrokenResourceError:
        data = b""
    keep(bytes(data))
    if not data:
        scope.cancel()
