"""Lists of topics, by pattern if the client sends one, and watches for changes of such lists (PIP-145)."""

from __future__ import annotations

from geminga import limits
from geminga.broker.connection.session import Handler, Session
from geminga.broker.connection.topic_list_watch import TopicListWatch
from geminga.broker.flow.slices import Pace, selected, sorted_names
from geminga.broker.topic_lists.pattern import TopicsPattern
from geminga.broker.topic_lists.watches import hashed
from geminga.errors import InvalidPattern, NotAllowed, ServerError
from geminga.names import NamespaceName
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb

NOT_WATCHED = "Unable to create topic list watcher: "
NOT_EVALUATED = (
    "the broker does not evaluate this pattern: a part of it is beyond RE2, or the patterns' memory is full"
)


async def topics_of_namespace(session: Session, command: pb.CommandGetTopicsOfNamespace) -> None:
    """The topics of a namespace; none for a missing namespace. `filtered` tells the client whether the
    pattern was applied. Otherwise the client applies its pattern itself, as with brokers that know no
    patterns.
    """
    namespace = NamespaceName.parse(command.namespace)
    async with session.large_answers:
        await session.outbox.wait_taken()
        persistent = command.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
        lists = session.topics.lists
        async with lists.listing:
            try:
                pattern = _applied(session, command) if command.HasField("topics_pattern") else None
            except InvalidPattern as error:
                session.outbox.write(encoder.error(command.request_id, ServerError.METADATA, str(error)))
                return
            names = await sorted_names(lists.names.each_name_in(namespace)) if persistent else []
            if pattern is not None:
                names = await selected(names, pattern.select)
            digest = await hashed(names, Pace())
            changed = command.topics_hash != digest
            session.outbox.write(
                encoder.topics_of_namespace(
                    command.request_id,
                    names if changed else [],
                    filtered=pattern is not None,
                    topics_hash=digest,
                    changed=changed,
                )
            )


def _applied(session: Session, command: pb.CommandGetTopicsOfNamespace) -> TopicsPattern | None:
    """The pattern that the broker applies to the list. Raises `InvalidPattern`."""
    settings = session.rooms.settings
    text = command.topics_pattern
    if not settings.applies_patterns or len(text) > settings.pattern_characters_max:
        return None
    return session.topics.lists.patterns.get(text)


async def watch_topic_list(session: Session, command: pb.CommandWatchTopicList) -> None:
    """Answer with the topics that match now, and push each change from then on. A second watch with the same
    id is answered like the first, because a client repeats its request when an answer takes too long.
    """
    watch = session.watches.get(command.watcher_id)
    if watch is None:
        namespace = NamespaceName.parse(command.namespace)
        _check_watched(session, command.topics_pattern)
        watch = TopicListWatch(command.watcher_id, session.outbox, session.topics.lists)
        session.watches[command.watcher_id] = watch
        try:
            async with session.topics.lists.listing:
                pattern = session.topics.lists.patterns.get(command.topics_pattern)
            if pattern is None:
                raise NotAllowed(f"{NOT_WATCHED}{NOT_EVALUATED}")
            await watch.begin(namespace, command.topics_pattern, pattern)
        except BaseException:
            session.watches.pop(command.watcher_id, None)
            raise
    async with session.large_answers:
        await session.outbox.wait_taken()
        watch.answer(command.request_id, command.topics_hash)


def _check_watched(session: Session, text: str) -> None:
    """Raises `NotAllowed` for a pattern that is not watched; its client then polls the whole list at its own
    intervals.
    """
    settings = session.rooms.settings
    if not settings.applies_patterns:
        raise NotAllowed(f"{NOT_WATCHED}Evaluating subscription patterns is disabled.")
    if len(text) > settings.pattern_characters_max:
        raise NotAllowed(f"{NOT_WATCHED}Pattern longer than maximum: {settings.pattern_characters_max}")
    if len(session.watches) >= limits.TOPIC_LIST_WATCHES_PER_CONNECTION_MAX:
        raise NotAllowed(f"{NOT_WATCHED}this connection has {len(session.watches)} already")


def close_watch(session: Session, command: pb.CommandWatchTopicListClose) -> None:
    """Succeeds even for an unknown watch, as in Pulsar."""
    watch = session.watches.pop(command.watcher_id, None)
    if watch is not None:
        watch.end()
    session.outbox.write(encoder.success(command.request_id))


HANDLERS: dict[type, Handler] = {
    pb.CommandGetTopicsOfNamespace: topics_of_namespace,
    pb.CommandWatchTopicList: watch_topic_list,
    pb.CommandWatchTopicListClose: close_watch,
}
