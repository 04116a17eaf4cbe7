"""What a client asks and hears, without a socket: ids, answers, refusals, redirections, paths."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from geminga.client.admin import delayed_path, namespace_path, reason_of, topic_path
from geminga.client.lookup import Lookup
from geminga.client.refusal import Refusal
from geminga.client.session import CONNECT_ID, Answer, Session
from geminga.errors import ServerError
from geminga.limits import MESSAGE_BYTES_MAX
from geminga.names import TopicName
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Decoder

NOWHERE = 2**64 - 1
CONNECTED = pb.CommandConnected(server_version="x", max_message_size=1000)
HERE, THERE, SAFE = "pulsar://here:1", "pulsar://there:2", "pulsar+ssl://there:3"
ask_partitions = partial(client_commands.partitioned_metadata, topic="t")


def connected() -> Session:
    session = Session()
    session.connect("test")
    session.hear(CONNECTED)
    return session


def error(request_id: int, code: int = ServerError.NOT_ALLOWED) -> pb.CommandError:
    return pb.CommandError(request_id=request_id, error=code, message="no")  # type: ignore[arg-type]


def sent(data: bytes) -> Any:
    (command,) = Decoder().feed(data)
    return command


def test_connect_says_who_we_are_and_its_answer_what_the_broker_takes() -> None:
    session = Session()
    hello = sent(session.connect("c", auth_method="token", auth_data=b"x", broker_entry_metadata=True))
    assert (hello.client_version, hello.auth_method_name, hello.auth_data) == ("c", "token", b"x")
    assert hello.feature_flags.supports_broker_entry_metadata
    assert (session.is_connected, session.message_bytes_max) == (False, MESSAGE_BYTES_MAX)
    assert session.hear(CONNECTED) == Answer(CONNECT_ID, CONNECTED, None)
    assert (session.is_connected, session.message_bytes_max) == (True, 1000)
    assert not sent(Session().connect("c")).HasField("feature_flags")


def test_an_error_before_the_connection_stands_refuses_connect_whatever_its_id() -> None:
    session = Session()
    session.connect("test")
    answer = session.hear(error(NOWHERE, ServerError.AUTHENTICATION))
    assert isinstance(answer, Answer)
    assert (answer.request_id, answer.refusal) == (CONNECT_ID, Refusal(ServerError.AUTHENTICATION, "no"))
    assert not session.is_connected
    assert connected().hear(error(NOWHERE)) is None


def test_answers_find_their_requests_in_any_order_and_once() -> None:
    session = connected()
    (first, data), (second, _) = session.ask(ask_partitions), session.ask(ask_partitions)
    assert (first != second, sent(data).request_id) == (True, first)
    found = pb.CommandPartitionedTopicMetadataResponse(
        request_id=second, partitions=3, response=pb.CommandPartitionedTopicMetadataResponse.Success
    )
    assert session.hear(found) == Answer(second, found, None)
    assert session.hear(found) is None
    answer = session.hear(error(first))
    assert isinstance(answer, Answer)
    assert (answer.request_id, answer.refusal) == (first, Refusal(ServerError.NOT_ALLOWED, "no"))


def test_what_nobody_waits_for_is_no_answer() -> None:
    session = connected()
    asked, _ = session.ask(ask_partitions)
    session.forget(asked)
    assert session.hear(error(asked)) is None
    assert session.hear(pb.CommandSuccess(request_id=session.new_id())) is None
    assert session.hear(pb.CommandCloseConsumer(consumer_id=1, request_id=77)) is None
    assert session.hear(pb.CommandSendReceipt(producer_id=1, sequence_id=1)) is None


def test_a_ping_is_answered_before_and_after_connect() -> None:
    assert Session().hear(pb.CommandPing()) == connected().hear(pb.CommandPing()) == encoder.pong()


def test_a_producer_that_waits_for_exclusive_access_is_not_ready_yet() -> None:
    session = connected()
    asked, _ = session.ask(ask_partitions)
    success = {"request_id": asked, "producer_name": "p"}
    assert session.hear(pb.CommandProducerSuccess(**success, producer_ready=False)) == b""
    ready = pb.CommandProducerSuccess(**success, producer_ready=True)
    assert session.hear(ready) == Answer(asked, ready, None)


@pytest.mark.parametrize(
    "answer",
    [
        pb.CommandError(error=11, message="no"),
        pb.CommandLookupTopicResponse(response=pb.CommandLookupTopicResponse.Failed, error=11, message="no"),
        pb.CommandPartitionedTopicMetadataResponse(
            response=pb.CommandPartitionedTopicMetadataResponse.Failed, error=11, message="no"
        ),
        pb.CommandGetSchemaResponse(error_code=11, error_message="no"),
        pb.CommandGetOrCreateSchemaResponse(error_code=11, error_message="no"),
        pb.CommandAckResponse(consumer_id=1, error=11, message="no"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_each_kind_of_answer_refuses_in_its_own_way(answer: Any) -> None:
    session = connected()
    answer.request_id, _ = session.ask(ask_partitions)
    heard = session.hear(answer)
    assert isinstance(heard, Answer)
    assert str(heard.refusal) == "the broker refused (TOPIC_NOT_FOUND): no"


def test_a_code_that_we_do_not_know_is_told_as_a_number() -> None:
    assert str(Refusal(4711, "no")) == "the broker refused (4711): no"


def lookup_answer(**fields: Any) -> pb.CommandLookupTopicResponse:
    kinds = pb.CommandLookupTopicResponse
    response = kinds.Connect if fields.pop("serves") else kinds.Redirect
    return pb.CommandLookupTopicResponse(request_id=1, response=response, **fields)


@pytest.mark.parametrize(
    ("asked", "answer", "owner"),
    [
        (HERE, {"brokerServiceUrl": THERE, "brokerServiceUrlTls": SAFE}, THERE),
        ("pulsar+ssl://a:1", {"brokerServiceUrl": THERE, "brokerServiceUrlTls": SAFE}, SAFE),
        (HERE, {"brokerServiceUrl": f"{HERE}/"}, HERE),
        (HERE, {"brokerServiceUrl": THERE, "proxy_through_service_url": True}, HERE),
        (HERE, {}, HERE),
    ],
)
def test_the_broker_that_serves_a_topic(asked: str, answer: dict[str, Any], owner: str) -> None:
    assert Lookup("t").hear(lookup_answer(serves=True, **answer), asked) == owner


def test_a_redirection_is_followed_with_the_authority_that_it_gave() -> None:
    lookup = Lookup("t")
    assert (lookup.url, sent(lookup.request(1)).authoritative) == (None, False)
    answer = lookup_answer(serves=False, brokerServiceUrl=THERE, authoritative=True)
    assert lookup.hear(answer, HERE) is None
    assert (lookup.url, sent(lookup.request(2)).authoritative) == (THERE, True)
    assert lookup.hear(lookup_answer(serves=False), THERE) is None
    assert (lookup.url, sent(lookup.request(3)).authoritative) == (None, False)


def test_paths_of_the_admin_api() -> None:
    name = TopicName.parse("persistent://ten/ns:1/a b?#")
    assert topic_path(name) == "/admin/v2/persistent/ten/ns%3A1/a%20b%3F%23"
    assert namespace_path(name.namespace) == "/admin/v2/namespaces/ten/ns%3A1"
    root = "/geminga/delayed/persistent/ten/ns%3A1/a%20b%3F%23"
    assert (delayed_path(name), delayed_path(name, "s/1")) == (root, f"{root}/subscription/s%2F1")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason": "Namespace not found"}', "Namespace not found"),
        (b'{"other": 1}', ""),
        (b"[]", ""),
        (b"first\nsecond", "first"),
        (b"<html>", ""),
        (b"", ""),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_reason_of_an_error(body: bytes, reason: str) -> None:
    assert reason_of(body) == reason
