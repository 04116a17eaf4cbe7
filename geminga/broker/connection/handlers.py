"""The handler of each command that a client may send.

A command without a handler is one that only a broker may send.
"""

from __future__ import annotations

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

HANDLERS: dict[type, Handler] = {
    **handle_connect.HANDLERS,
    **handle_lookup.HANDLERS,
    **handle_topic_lists.HANDLERS,
    **handle_produce.HANDLERS,
    **handle_consume.HANDLERS,
    **handle_schemas.HANDLERS,
    **handle_unserved.HANDLERS,
}
