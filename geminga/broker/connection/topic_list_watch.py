"""One client's watch of topic names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.errors import ServiceNotReady
from geminga.wire import encoder

if TYPE_CHECKING:
    from geminga.broker.flow.outbox import Outbox
    from geminga.broker.topic_lists.pattern import TopicsPattern
    from geminga.broker.topic_lists.watches import PatternList, TopicLists
    from geminga.names import NamespaceName


class TopicListWatch:
    """Pushes added and deleted names into the outbox, from its first answer until `end`."""

    def __init__(self, watcher_id: int, outbox: Outbox, lists: TopicLists) -> None:
        self._watcher_id = watcher_id
        self._outbox = outbox
        self._lists = lists
        self._list: PatternList | None = None
        self.is_answered = False
        """Before the first answer nothing is pushed: clients do not know the watcher's id until then."""

    async def begin(self, namespace: NamespaceName, text: str, pattern: TopicsPattern) -> None:
        """Start the watch. Raises as `TopicLists.watch`. If this fails or is cancelled, nothing
        is watched.
        """
        self._list = await self._lists.watch(namespace, text, pattern, self)

    def answer(self, request_id: int, known_hash: str) -> None:
        """Write the names that match now; none if the client has the list with this hash already.

        Raises `ServiceNotReady` while `begin` runs.
        """
        if self._list is None:
            raise ServiceNotReady("Topic list watcher is already present on the connection")
        names, digest = self._list.names, self._list.digest
        known = known_hash == digest
        self._outbox.write(
            encoder.topic_list_watched(request_id, self._watcher_id, [] if known else names, digest)
        )
        self.is_answered = True

    def changed(self, added: list[str], deleted: list[str], digest: str) -> None:
        """Push a change; only after the first answer."""
        self._outbox.write(encoder.topic_list_changed(self._watcher_id, added, deleted, digest))

    def end(self) -> None:
        """End the watch. May be repeated."""
        if self._list is not None:
            self._lists.unwatch(self._list, self)
