"""Connections that the producers of a task share, one to each broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from geminga.client.lookup import REDIRECTS_MAX, Lookup
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.lookup import refused_lookup
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError, Refused

Hear: TypeAlias = Callable[[Any], None]
"""Takes a receipt, an error, or that the broker has closed a producer. Raises `Refused` for an error."""


class ProducerConnection:
    """To one broker. The producer that finds it lost closes it for all. Not for several threads."""

    def __init__(self, connection: Connection) -> None:
        """Takes the connection over."""
        self.url = connection.url
        self.is_closed = False
        self._connection = connection
        self._producers: dict[int, Hear] = {}

    @property
    def message_bytes_max(self) -> int:
        return self._connection.message_bytes_max

    def join(self, producer_id: int, hear: Hear) -> None:
        """The producer is registered with the broker, and hears what is for it from now on."""
        self._producers[producer_id] = hear

    def leave(self, producer_id: int) -> None:
        """The last one to leave closes the connection."""
        self._producers.pop(producer_id, None)
        self.close_unused()

    def close_unused(self) -> None:
        if not self._producers:
            self.close()

    def request(self, build: Callable[[int], bytes]) -> Any:
        """Raises `BrokerUnreachable`, `Refused`."""
        return self._or_lost(lambda: self._connection.request(build))

    def write(self, data: bytes) -> None:
        """Raises `BrokerUnreachable`."""
        self._or_lost(lambda: self._connection.write(data))

    def hear(self, timeout_s: float) -> None:
        """Give its producers what has arrived, or arrives next. Raises `BrokerUnreachable`, `Refused`."""
        self._hand_out(self._or_lost(lambda: self._connection.receive(timeout_s)))

    def _hand_out(self, commands: list[Any]) -> None:
        for command in commands:
            hear = self._producers.get(getattr(command, "producer_id", 0))
            if hear is not None:
                hear(command)

    def _or_lost(self, act: Callable[[], Any]) -> Any:
        if self.is_closed:
            raise BrokerUnreachable(f"the connection to {self.url} is lost")
        try:
            return act()
        except BrokerUnreachable:
            self.close()
            raise

    def close(self) -> None:
        """For all of its producers. Receipts that have arrived count: what has one is not sent again."""
        if not self.is_closed:
            self.is_closed = True
            self._connection.close()
            self._hand_out(self._connection.receive(0))


class ProducerConnections:
    """Has no connection while there is no producer. Not for several threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._by_url: dict[str, ProducerConnection] = {}
        self._service_url = ""
        """Of the broker that answered first."""
        self._last_id = 0

    def new_producer_id(self) -> int:
        """Not of one connection: frames name it, and may go to another broker later. The first is 1."""
        self._last_id += 1
        return self._last_id

    def to_owner_of(self, topic: str) -> ProducerConnection:
        """To the broker that serves the topic, found by LOOKUP. Raises `PipelineError`."""
        lookup = Lookup(topic)
        for _ in range(REDIRECTS_MAX):
            asked = self._to(lookup.url)
            try:
                owner = lookup.hear(asked.request(lookup.request), asked.url)
            except Refused as error:
                asked.close_unused()
                raise refused_lookup(topic, error) from None
            if owner == asked.url:
                return asked
            asked.close_unused()
            if owner is not None:
                return self._to(owner)
        raise PipelineError(lookup.endless)

    def _to(self, url: str | None) -> ProducerConnection:
        kept = self._by_url.get(url or self._service_url)
        if kept is not None and not kept.is_closed:
            return kept
        made = ProducerConnection(Connection.open(self._access, url))
        if url is None:
            self._service_url = made.url
        self._by_url[url or made.url] = made
        return made
