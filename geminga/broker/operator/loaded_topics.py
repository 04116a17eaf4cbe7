"""The loaded topics, and since when the broker serves them."""

from __future__ import annotations

from geminga.broker.topic.rooms import Rooms
from geminga.broker.topic.topics import Topics


class LoadedTopics:
    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._clock = rooms.clock
        self.started_ms = rooms.clock.now_ms()

    def __len__(self) -> int:
        return len(self._topics.loaded)

    def names(self) -> list[str]:
        """Full names, in no order."""
        return list(self._topics.loaded)

    def now_ms(self) -> int:
        return self._clock.now_ms()
