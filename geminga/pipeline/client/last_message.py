"""Where a single topic ends now, asked over a connection of its own."""

from __future__ import annotations

import uuid

from geminga.errors import ServerError
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.entry_stream import subscribe_reader
from geminga.pipeline.client.lookup import owner_of
from geminga.pipeline.client.topics import Last, missing
from geminga.pipeline.columns.message_id import LATEST, of_message_id
from geminga.pipeline.errors import Access, Refused
from geminga.wire import client_commands

_CONSUMER_ID = 1


def last_of(access: Access, topic: str) -> Last:
    """Where a topic (a single partition) ends now. Raises `TopicMissing`, `PipelineError`."""
    with owner_of(access, topic) as connection:
        subscribe_for_questions(connection, topic, access.reader_name)
        return ask_last(connection)


def subscribe_for_questions(connection: Connection, topic: str, reader_name: str) -> None:
    """A reader that never gets anything, because only consumers may ask where a topic ends."""
    name = f"{reader_name}-{uuid.uuid4().hex[:16]}"
    try:
        connection.request(lambda number: subscribe_reader(topic, LATEST, number, subscription=name))
    except Refused as error:
        if error.code in (ServerError.TOPIC_NOT_FOUND, ServerError.METADATA):
            raise missing(topic) from None
        raise


def ask_last(connection: Connection) -> Last:
    answer = connection.request(lambda number: client_commands.last_message_id(number, _CONSUMER_ID))
    message_id = of_message_id(answer.last_message_id)
    return Last(None if message_id.entry_id < 0 else message_id)
