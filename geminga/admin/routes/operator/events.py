"""`/geminga/events`: what happened in this broker, in order; as JSON, or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from geminga.admin.http.router import BadRequest, Request, Response, Router, json_response
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.process import ProcessView
from geminga.errors import NotAllowed
from geminga.events.event import Event, Filter
from geminga.events.event_log import EVENTS_MAX, EventLog, Missed
from geminga.events.kinds import KINDS
from geminga.names import TopicName

PATH: Final = "/geminga/events"
LIMIT: Final = 1000
KEEP_ALIVE_SECONDS: Final = 10.0
STREAM: Final = "text/event-stream"


class EventRoutes:
    def __init__(self, process: ProcessView) -> None:
        self._process = process
        self._gate = OperatorGate(process)

    def add_to(self, router: Router) -> None:
        router.add("GET", PATH, self.events)
        router.add("GET", f"{PATH}/kinds", self.kinds)

    async def events(self, request: Request) -> Response:
        """Events with numbers above `since`, the oldest first, at most `limit`; without `since`, the last
        ones. `kind` (several with commas), `topic` (a name, or its beginning and *) and `subscription`
        choose. With `Accept: text/event-stream`: events as they come, from `since` or `Last-Event-ID` on.
        """
        self._gate.check(request)
        log, wanted = self._log(), _filter(request)
        if STREAM in request.accept:
            since = _number(request, "since", -1, 2**63 - 1)
            if request.last_event_id.isascii() and request.last_event_id.isdigit():
                since = min(int(request.last_event_id[:19]), 2**63 - 1)
            parts = _stream(log, log.last_sequence if since < 0 else since, wanted)
            return Response(200, content_type=STREAM, headers=(("Cache-Control", "no-store"),), parts=parts)
        since = _number(request, "since", -1, 2**63 - 1)
        limit = _number(request, "limit", LIMIT, EVENTS_MAX)
        return json_response(await log.recent(since, max(limit, 1), wanted))

    async def kinds(self, request: Request) -> Response:
        """Every kind of event: what it tells, and its counts."""
        self._gate.check(request)
        return json_response(
            {name: {"text": kind.text, "counts": kind.counts} for name, kind in KINDS.items()}
        )

    def _log(self) -> EventLog:
        if self._process.events is None:
            raise NotAllowed("this broker keeps no events")
        return self._process.events


def _filter(request: Request) -> Filter:
    query = request.query
    topic = query.get("topic", "")
    if topic and not topic.endswith("*"):
        topic = str(TopicName.parse(topic))
    kinds = frozenset(kind for kind in query.get("kind", "").split(",") if kind)
    wanted = Filter(kinds, topic, query.get("subscription", ""))
    wanted.check()
    return wanted


def _number(request: Request, name: str, default: int, last: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > last:
        raise BadRequest(f"{name}: expected a number from 0 to {last}")
    return int(text)


async def _stream(log: EventLog, since: int, wanted: Filter) -> AsyncGenerator[bytes, None]:
    yield b": events of this broker, in order\n\n"
    async with aclosing(log.follow(since, wanted, KEEP_ALIVE_SECONDS)) as parts:
        async for part in parts:
            if isinstance(part, Missed):
                yield b"event: missed\ndata: " + msgspec.json.encode({"events": part.events}) + b"\n\n"
            else:
                # A comment keeps the connection, and finds out that its peer is gone.
                yield b"".join(map(_sent, part)) or b": idle\n\n"


def _sent(event: Event) -> bytes:
    # JSON has no line ends of its own, so one line of data holds any topic's name.
    data = msgspec.json.encode(event)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.kind.encode(), data)
