"""Lists of topics by pattern, and watches of them, on the wire. Also runs against Pulsar."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pulsar
import pytest
from google.protobuf.message import Message

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.binary_session import BinarySession
from tests.e2e.broker_process import Endpoints

M = TypeVar("M", bound=Message)
List = pb.CommandGetTopicsOfNamespace


@pytest.fixture
def session(broker: Endpoints) -> Iterator[BinarySession]:
    with BinarySession(broker.binary_address) as session:
        assert session.connect().feature_flags.supports_topic_watchers
        yield session


@pytest.fixture
def prefix(topic: str) -> str:
    """Short, since a pattern may have 50 characters only."""
    return f"w{time.time_ns() % 10**9}"


def full(prefix: str, *names: str) -> list[str]:
    return [f"persistent://public/default/{prefix}-{name}" for name in names]


def create(admin: Admin, prefix: str, *names: str) -> None:
    for name in names:
        assert admin.put(f"/admin/v2/persistent/public/default/{prefix}-{name}").status == 204


def ask(session: BinarySession, command: Any, answer: type[M]) -> M:
    command.request_id = session.next_request_id()
    return session.request(command, answer)


def watch(session: BinarySession, prefix: str, known_hash: str = "") -> pb.CommandWatchTopicListSuccess:
    return ask(
        session,
        pb.CommandWatchTopicList(
            watcher_id=1,
            namespace="public/default",
            topics_pattern=f"persistent://public/default/{prefix}-.*",
            topics_hash=known_hash,
        ),
        pb.CommandWatchTopicListSuccess,
    )


def test_a_list_is_filtered_and_left_out_if_the_client_has_it(
    session: BinarySession, admin: Admin, prefix: str
) -> None:
    create(admin, prefix, "a", "b")
    create(admin, f"not-{prefix}", "c")
    asked = List(namespace="public/default", mode=List.ALL, topics_pattern=f"public/default/{prefix}-.*")
    found = ask(session, asked, pb.CommandGetTopicsOfNamespaceResponse)
    assert (sorted(found.topics), found.filtered, found.changed) == (full(prefix, "a", "b"), True, True)
    asked.topics_hash = found.topics_hash
    again = ask(session, asked, pb.CommandGetTopicsOfNamespaceResponse)
    assert (list(again.topics), again.filtered, again.changed) == ([], True, False)


@pytest.mark.parametrize(("text", "is_filtered"), [("x" * 51, False), ("x" * 50, True)])
def test_a_long_pattern_is_left_to_the_client(
    session: BinarySession, admin: Admin, prefix: str, text: str, is_filtered: bool
) -> None:
    create(admin, prefix, "a")
    asked = List(namespace="public/default", mode=List.ALL, topics_pattern=text)
    found = ask(session, asked, pb.CommandGetTopicsOfNamespaceResponse)
    assert found.filtered is is_filtered
    assert (full(prefix, "a")[0] in found.topics) is not is_filtered


@pytest.mark.geminga_only
def test_a_pattern_that_takes_long_to_compile_is_left_to_the_client(
    session: BinarySession, admin: Admin, client: pulsar.Client, prefix: str
) -> None:
    create(admin, prefix, "a", "ab", "b")
    text = f"persistent://public/default/{prefix}-a.{{0,500}}"
    asked = List(namespace="public/default", mode=List.ALL, topics_pattern=text)
    assert len(text) <= 50
    assert not ask(session, asked, pb.CommandGetTopicsOfNamespaceResponse).filtered
    watched = pb.CommandWatchTopicList(watcher_id=1, namespace="public/default", topics_pattern=text)
    assert ask(session, watched, pb.CommandError).error == pb.NotAllowedError
    consumer = client.subscribe(re.compile(text), "s", initial_position=pulsar.InitialPosition.Earliest)
    for name in full(prefix, "a", "ab", "b"):
        client.create_producer(name).send(name.encode())
    received = [consumer.receive(10_000).data().decode() for _ in range(2)]
    assert sorted(received) == full(prefix, "a", "ab")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)


def test_a_malformed_pattern_is_refused(session: BinarySession) -> None:
    asked = List(namespace="public/default", mode=List.ALL, topics_pattern="(")
    assert ask(session, asked, pb.CommandError).error == pb.MetadataError
    watched = pb.CommandWatchTopicList(watcher_id=1, namespace="public/default", topics_pattern="(")
    refused = ask(session, watched, pb.CommandError)
    assert refused.error == pb.InvalidTopicName
    assert "Invalid topics pattern" in refused.message
    watched.topics_pattern = "x" * 51
    refused = ask(session, watched, pb.CommandError)
    assert refused.error == pb.NotAllowedError
    assert "Pattern longer than maximum: 50" in refused.message


def test_a_watch_is_told_of_what_comes_and_goes_until_it_is_closed(
    session: BinarySession, admin: Admin, prefix: str
) -> None:
    create(admin, prefix, "a")
    begun = watch(session, prefix)
    assert list(begun.topic) == full(prefix, "a")
    assert list(watch(session, prefix, begun.topics_hash).topic) == [], "the client has this list"
    create(admin, prefix, "b")
    create(admin, f"not-{prefix}", "c")
    added = session.expect(pb.CommandWatchTopicUpdate)
    assert (added.watcher_id, list(added.new_topics), list(added.deleted_topics)) == (
        1,
        full(prefix, "b"),
        [],
    )
    assert admin.delete(f"/admin/v2/persistent/public/default/{prefix}-a").status == 204
    deleted = session.expect(pb.CommandWatchTopicUpdate)
    assert (list(deleted.new_topics), list(deleted.deleted_topics)) == ([], full(prefix, "a"))
    assert watch(session, prefix, deleted.topics_hash).topics_hash == deleted.topics_hash
    ask(session, pb.CommandWatchTopicListClose(watcher_id=1), pb.CommandSuccess)
    create(admin, prefix, "d")
    session.send(pb.CommandPing())
    session.expect(pb.CommandPong)  # and nothing before it


@pytest.mark.geminga_only
def test_what_a_producer_makes_is_told_and_a_client_that_left_is_forgotten(
    broker: Endpoints, admin: Admin, make_client: Callable[..., pulsar.Client], prefix: str
) -> None:
    with BinarySession(broker.binary_address) as gone:
        gone.connect()
        watch(gone, prefix)
    with BinarySession(broker.binary_address) as session:
        session.connect()
        watch(session, prefix)
        make_client().create_producer(full(prefix, "a")[0])
        assert list(session.expect(pb.CommandWatchTopicUpdate).new_topics) == full(prefix, "a")
    admin.well()


@pytest.mark.geminga_only
def test_watches_of_one_connection_are_bounded(session: BinarySession) -> None:
    for watcher_id in range(1001):
        asked = pb.CommandWatchTopicList(
            request_id=watcher_id + 10,
            watcher_id=watcher_id,
            namespace="public/default",
            topics_pattern="public/default/none",
        )
        session.send(asked)
    answers = [session.receive().command for _ in range(1001)]
    refused = [answer for answer in answers if isinstance(answer, pb.CommandError)]
    assert [answer.error for answer in refused] == [pb.NotAllowedError]
    assert "1000 already" in refused[0].message
