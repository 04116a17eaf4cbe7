"""The handler of each command that a client may send.

A command without a handler is one that only a broker may send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from geminga.broker.connection import (
    handle_connect,
    handle_consume,
    handle_lookup,
    handle_produce,
    handle_schemas,
    handle_topic_lists,
    handle_unserved,
)
from geminga.broker.connection.session import Handler
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack, Flow, Send

HANDLERS: dict[type, Handler] = {
    **handle_connect.HANDLERS,
    **handle_lookup.HANDLERS,
    **handle_topic_lists.HANDLERS,
    **handle_produce.HANDLERS,
    **handle_consume.HANDLERS,
    **handle_schemas.HANDLERS,
    **handle_unserved.HANDLERS,
}

WALKS: Final[Mapping[type, str]] = {
    Send: "subscriptions",
    Ack: "messages",
    Flow: "messages",
    pb.CommandAck: "messages",
    pb.CommandRedeliverUnacknowledgedMessages: "messages",
    pb.CommandGetTopicsOfNamespace: "topics",
    pb.CommandWatchTopicList: "topics",
    pb.CommandProducer: "subscriptions",
    pb.CommandSeek: "consumers",
    pb.CommandUnsubscribe: "consumers",
}
"""What a command looks at one by one and there may be thousands of, as `walks=` of a route. Its handler
leaves turns to others, or is one of those that say why not: `tests/broker/connection/test_walks.py`.
"""
