"""Which function answers which command. A command that is not here is answered with an error, never with
silence.
"""

from __future__ import annotations

from geminga.broker import handle_connect, handle_consume, handle_lookup, handle_produce
from geminga.broker.session import Handler

HANDLERS: dict[type, Handler] = {
    **handle_connect.HANDLERS,
    **handle_lookup.HANDLERS,
    **handle_produce.HANDLERS,
    **handle_consume.HANDLERS,
}
