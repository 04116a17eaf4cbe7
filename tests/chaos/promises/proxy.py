"""A proxy between clients and a broker that tells lies: it sees each frame, and decides what goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import trio
from fastcrc.crc32 import iscsi as crc_32c

from geminga.wire import pulsar_pb2 as pb

RECEIVE_BYTES = 256 * 1024
_CHECKSUM = b"\x0e\x01"


class Entry(NamedTuple):
    """What follows SEND and MESSAGE."""

    metadata: pb.MessageMetadata
    payload: bytes

    def encode(self) -> bytes:
        head = self.metadata.SerializeToString()
        rest = len(head).to_bytes(4, "big") + head + self.payload
        return _CHECKSUM + crc_32c(rest).to_bytes(4, "big") + rest


class Frame(NamedTuple):
    command: pb.BaseCommand
    rest: bytes = b""

    @property
    def kind(self) -> str:
        return pb.BaseCommand.Type.Name(self.command.type)

    @property
    def entry(self) -> Entry:
        at = 6 if self.rest[:2] == _CHECKSUM else 0
        size = int.from_bytes(self.rest[at : at + 4], "big")
        metadata = pb.MessageMetadata.FromString(self.rest[at + 4 : at + 4 + size])
        return Entry(metadata, self.rest[at + 4 + size :])

    def with_entry(self, entry: Entry) -> Frame:
        return self._replace(rest=entry.encode())

    def copy(self) -> Frame:
        """With a command that may be changed."""
        return self._replace(command=pb.BaseCommand.FromString(self.command.SerializeToString()))

    def encode(self) -> bytes:
        command = self.command.SerializeToString()
        total = 4 + len(command) + len(self.rest)
        return total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + self.rest


class Link:
    """One connection through the proxy."""

    def __init__(self) -> None:
        self.to_client, self._from_broker = trio.open_memory_channel[bytes](10_000)
        self.to_broker, self._from_client = trio.open_memory_channel[bytes](10_000)

    def tell_client(self, frame: Frame) -> None:
        self.to_client.send_nowait(frame.encode())

    def tell_broker(self, frame: Frame) -> None:
        self.to_broker.send_nowait(frame.encode())

    async def run(self, client: trio.SocketStream, broker: trio.SocketStream, liar: Liar) -> None:
        async with trio.open_nursery() as nursery:
            stop = nursery.cancel_scope.cancel
            nursery.start_soon(self._read, client, partial(liar.from_client, self), self.tell_broker, stop)
            nursery.start_soon(self._read, broker, partial(liar.from_broker, self), self.tell_client, stop)
            nursery.start_soon(self._write, client, self._from_broker)
            nursery.start_soon(self._write, broker, self._from_client)

    async def _read(
        self,
        stream: trio.SocketStream,
        judge: Callable[[Frame], Iterator[Frame]],
        tell: Callable[[Frame], None],
        stop: Callable[[], None],
    ) -> None:
        waiting = b""
        try:
            while data := await stream.receive_some(RECEIVE_BYTES):
                waiting += data
                while len(waiting) >= 4 and len(waiting) >= (end := 4 + int.from_bytes(waiting[:4], "big")):
                    frame, waiting = waiting[:end], waiting[end:]
                    size = int.from_bytes(frame[4:8], "big")
                    command = pb.BaseCommand.FromString(frame[8 : 8 + size])
                    for onward in judge(Frame(command, frame[8 + size :])):
                        tell(onward)
        except trio.BrokenResourceError:
            pass
        stop()

    async def _write(self, stream: trio.SocketStream, channel: trio.MemoryReceiveChannel[bytes]) -> None:
        async for data in channel:
            try:
                await stream.send_all(data)
            except trio.BrokenResourceError:
                return


class Liar:
    """Tells the truth; a lie overrides one of the two."""

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        yield frame

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        yield frame


async def serve(
    liar: Liar, broker: tuple[str, int], *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled; the task status is the port."""

    async def handle(client: trio.SocketStream) -> None:
        stream = await trio.open_tcp_stream(*broker)
        async with client, stream:
            await Link().run(client, stream, _Truthful(liar))

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(handle, listeners)


class _Truthful(Liar):
    """Keeps clients at the proxy: they would go to the broker's own address."""

    def __init__(self, liar: Liar) -> None:
        self._liar = liar

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        return self._liar.from_client(link, frame)

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "LOOKUP_RESPONSE":
            frame.command.lookupTopicResponse.proxy_through_service_url = True
        return self._liar.from_broker(link, frame)
