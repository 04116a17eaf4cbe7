"""The pages for a person with a browser. Only the first request for one imports this: few brokers need it."""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.admin.front import script
from geminga.admin.front.overview import Overview, overview
from geminga.admin.front.page import page, topic_rows_html
from geminga.admin.front.shared import Shared
from geminga.admin.front.style import CONTENT_POLICY
from geminga.admin.front.topic_look import topic_look
from geminga.admin.front.topic_page import topic_page
from geminga.admin.front.topic_rows import ROWS, Query, query_of
from geminga.admin.http.router import Request, Response
from geminga.admin.routes.addresses import Addresses
from geminga.admin.routes.names import topic_of
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.broker import BrokerView
from geminga.broker.flow.slices import Pace
from geminga.errors import OperatorOnly, OperatorTokenWrong
from geminga.names import TopicName

HEADERS: Final = (
    ("Content-Security-Policy", CONTENT_POLICY),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)


class _Drawn(NamedTuple):
    """What a page depends on beside the figures."""

    query: Query
    service_url: str
    for_operator: bool


class _Figures:
    """Those of one moment, with the pages that were drawn of them."""

    def __init__(self, found: Overview) -> None:
        self._found = found
        self.pages = Shared(self._draw)

    async def _draw(self, wanted: _Drawn) -> bytes:
        query, service_url, for_operator = wanted
        chosen, pace = await self._found.rows.chosen(query), Pace()
        rows_html = ""
        for start in range(0, len(chosen.rows), ROWS):
            rows_html += topic_rows_html(chosen.rows[start : start + ROWS])
            await pace.turn()
        html = page(self._found, chosen, rows_html, query, service_url, for_operator=for_operator)
        return html.encode()


class Pages:
    """Draws the pages of one broker, and shares what is drawn."""

    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._gate = OperatorGate(view.process)
        self._figures = Shared(self._gather)
        self._topics = Shared(self._draw_topic)

    async def index(self, request: Request) -> Response:
        """The page of the broker. `sort`, `q` (part of a name), `namespace` and `limit` choose its topics."""
        figures = await self._figures.get("")
        wanted = _Drawn(
            query_of(request.query), self._address_of_clients(request), self._is_operator(request)
        )
        return _html(await figures.pages.get(wanted))

    async def topic(self, request: Request) -> Response:
        """The page of one topic: its subscriptions, clients, and buckets of delayed messages."""
        return _html(await self._topics.get((topic_of(request), self._address_of_clients(request))))

    async def script(self, request: Request) -> Response:
        """The script of the pages."""
        headers = (("Cache-Control", "no-cache"), ("X-Content-Type-Options", "nosniff"))
        return Response(200, script.SCRIPT.encode(), "text/javascript; charset=utf-8", headers)

    async def _gather(self, _: str) -> _Figures:
        return _Figures(await overview(self._view))

    async def _draw_topic(self, wanted: tuple[TopicName, str]) -> bytes:
        topic, service_url = wanted
        return topic_page(await topic_look(self._view, topic), service_url).encode()

    def _address_of_clients(self, request: Request) -> str:
        return Addresses(self._view, request.local_host).binary

    def _is_operator(self, request: Request) -> bool:
        try:
            self._gate.check(request)
        except (OperatorOnly, OperatorTokenWrong):
            return False
        return True


def _html(document: bytes) -> Response:
    return Response(200, document, "text/html; charset=utf-8", HEADERS)
