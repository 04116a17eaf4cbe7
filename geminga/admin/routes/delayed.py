"""The delayed index under `/geminga/delayed`: looked into, and changed, message by message."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import msgspec

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    NotFound,
    Request,
    Response,
    Router,
    json_response,
    streamed_json,
)
from geminga.admin.http.streaming import in_parts
from geminga.admin.routes.names import subscription_of, topic_of
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.delayed import DelayedView
from geminga.admin.view.process import ProcessView
from geminga.broker.operator.delayed_statistics import BucketInfo, SegmentInfo
from geminga.broker.operator.delayed_verify import VerifiedBucket
from geminga.chaos.bucket_damage import Damage
from geminga.limits import DUE_MS_MAX, PRECISION_MAX_MS
from geminga.position import Position

TOPIC_ROOT = "/geminga/delayed/persistent/{tenant}/{namespace}/{topic}"
ROOT = f"{TOPIC_ROOT}/subscription/{{subscription}}"
PAGE_MAX = 1000
WIDTH_MS = 60_000
NUMBER_MAX = 2**63 - 1
POSITIONS_MAX = 10_000
NO_BUCKETS = (
    "there are no buckets on disk: "
    "one is written when delayedDeliveryMinIndexCountPerBucket messages wait (default: 50000)"
)
DAMAGES: tuple[Damage, ...] = ("lose", "truncate", "corrupt")


class DelayedRoutes:
    def __init__(self, view: DelayedView, process: ProcessView) -> None:
        self._view = view
        self._gate = OperatorGate(process)

    def add_to(self, router: Router) -> None:
        router.add("POST", "/geminga/delayed/verify", self.verify, walks="partitions")
        router.add("POST", f"{TOPIC_ROOT}/verify", self.verify, walks="partitions")
        router.add("POST", f"{ROOT}/verify", self.verify, walks="partitions")
        router.add("GET", ROOT, self.summary, walks="partitions")
        router.add("GET", f"{ROOT}/histogram", self.histogram, walks="partitions")
        router.add("GET", f"{ROOT}/messages", self.messages, walks="partitions")
        router.add("GET", f"{ROOT}/why/{{ledger}}/{{entry}}", self.why)
        router.add("GET", f"{ROOT}/buckets", self.buckets, walks="partitions")
        router.add("GET", f"{ROOT}/buckets/{{ledger}}", self.bucket)
        router.add("GET", f"{ROOT}/show/{{bucket}}", self.show, walks="partitions")
        router.add("GET", f"{ROOT}/show/{{bucket}}/messages", self.show_messages, walks="partitions")
        router.add("POST", f"{ROOT}/adopt", self.adopt, walks="partitions", large_body=True)
        router.add("POST", f"{ROOT}/cancel", self.cancel)
        router.add("POST", f"{ROOT}/expedite", self.expedite)
        router.add("POST", f"{ROOT}/postpone", self.postpone)
        router.add("GET", f"{ROOT}/precision", self.precision, walks="partitions")
        router.add("POST", f"{ROOT}/precision", self.set_precision, walks="partitions")
        router.add("DELETE", f"{ROOT}/precision", self.unset_precision, walks="partitions")
        for how in DAMAGES:
            router.add("POST", f"{ROOT}/{how}-bucket", functools.partial(self.damage, how))

    async def verify(self, request: Request) -> Response:
        """All buckets of all topics, of one, or of what one subscription looks at; as they are looked at."""
        topic = topic_of(request) if "topic" in request.parameters else None
        subscription = subscription_of(request) if "subscription" in request.parameters else None
        return streamed_json(_verified_parts(self._view.verify(topic, subscription)))

    async def summary(self, request: Request) -> Response:
        return json_response(await self._view.summary(topic_of(request), subscription_of(request)))

    async def histogram(self, request: Request) -> Response:
        width_ms = _number(request.query.get("widthMs", str(WIDTH_MS)), "widthMs", lowest=1)
        return json_response(
            await self._view.histogram(topic_of(request), subscription_of(request), width_ms)
        )

    async def messages(self, request: Request) -> Response:
        start = _position(request.query.get("start", "0:0"))
        limit = _number(request.query.get("limit", "100"), "limit", lowest=1, highest=PAGE_MAX)
        page = await self._view.messages(topic_of(request), subscription_of(request), start, limit)
        return json_response(page)

    async def why(self, request: Request) -> Response:
        place = f"{request.parameters['ledger']}:{request.parameters['entry']}"
        answer = await self._view.why(topic_of(request), subscription_of(request), _position(place))
        return json_response(answer)

    async def buckets(self, request: Request) -> Response:
        buckets = await self._view.buckets(topic_of(request), subscription_of(request))
        return streamed_json(in_parts(_bucket_pieces(buckets)))

    async def bucket(self, request: Request) -> Response:
        """All entries of one bucket, as a bundle."""
        ledger_id = _number(request.parameters["ledger"], "ledger")
        found = await self._view.bucket_entries(topic_of(request), subscription_of(request), ledger_id)
        if found is None:
            raise NotFound("there is no such bucket")
        return Response(200, found, "application/octet-stream")

    async def show(self, request: Request) -> Response:
        """The contents of a bucket, named by its ledger (`45`) or its range (`10-11`)."""
        name = request.parameters["bucket"]
        return json_response(await self._view.bucket(topic_of(request), subscription_of(request), name))

    async def show_messages(self, request: Request) -> Response:
        name = request.parameters["bucket"]
        start = _number(request.query.get("start", "0"), "start")
        limit = _number(request.query.get("limit", "100"), "limit", lowest=1, highest=PAGE_MAX)
        rows = await self._view.bucket_rows(topic_of(request), subscription_of(request), name, start, limit)
        return json_response(rows)

    async def adopt(self, request: Request) -> Response:
        """Body: a bundle of buckets."""
        adopted = await self._view.adopt(topic_of(request), subscription_of(request), request.body)
        return json_response(adopted)

    async def cancel(self, request: Request) -> Response:
        """Body: {"messages": ["ledger:entry", ...]}"""
        given = _object(request).get("messages")
        if not isinstance(given, list) or not given or len(given) > POSITIONS_MAX:
            raise BadRequest(f'expected {{"messages": ["ledger:entry", ...]}} with up to {POSITIONS_MAX}')
        positions = [_position(place) for place in given]
        return json_response(await self._view.cancel(topic_of(request), subscription_of(request), positions))

    async def expedite(self, request: Request) -> Response:
        """Body: {"message": "ledger:entry"}"""
        position = _position(_required(_object(request), "message"))
        await self._view.reschedule(topic_of(request), subscription_of(request), position, None)
        return NO_CONTENT

    async def postpone(self, request: Request) -> Response:
        """Body: {"message": "ledger:entry", "dueMs": ms since 1970, before the year 10000}"""
        body = _object(request)
        position = _position(_required(body, "message"))
        due_ms = _required(body, "dueMs")
        if type(due_ms) is not int or not 0 <= due_ms <= DUE_MS_MAX:
            latest = f"{DUE_MS_MAX}, which is 9999-12-31 23:59:59.999Z"
            raise BadRequest(f"dueMs: expected a time in ms since 1970, at the latest {latest}")
        await self._view.reschedule(topic_of(request), subscription_of(request), position, due_ms)
        return NO_CONTENT

    async def precision(self, request: Request) -> Response:
        return json_response(await self._view.precision(topic_of(request), subscription_of(request)))

    async def set_precision(self, request: Request) -> Response:
        """Body: {"precisionMs": ms, at most a day}"""
        precision_ms = _required(_object(request), "precisionMs")
        if type(precision_ms) is not int or not 0 <= precision_ms <= PRECISION_MAX_MS:
            raise BadRequest(f"precisionMs: expected a whole number of ms up to {PRECISION_MAX_MS}, a day")
        await self._view.set_precision(topic_of(request), subscription_of(request), precision_ms)
        return NO_CONTENT

    async def unset_precision(self, request: Request) -> Response:
        await self._view.set_precision(topic_of(request), subscription_of(request), None)
        return NO_CONTENT

    async def damage(self, how: Damage, request: Request) -> Response:
        """Body: {"ledgerId": of the bucket's own ledger, "quietly": whether the broker is to find out by
        itself}, or nothing for the first bucket. For an operator only.
        """
        self._gate.check(request)
        body = _object(request)
        given, quietly = body.get("ledgerId"), body.get("quietly", False)
        if not isinstance(quietly, bool):
            raise BadRequest("quietly: expected true or false")
        if given is not None and (type(given) is not int or given < 0):
            raise BadRequest("ledgerId: expected the id of a bucket's ledger")
        damaged = await self._view.damage(
            topic_of(request), subscription_of(request), how, given, quietly=quietly
        )
        if damaged is None:
            raise NotFound(NO_BUCKETS if given is None else "there is no such bucket")
        return json_response({"ledgerId": damaged})


async def _verified_parts(buckets: AsyncGenerator[VerifiedBucket, None]) -> AsyncGenerator[bytes, None]:
    """A JSON array, bucket by bucket: each may take a while."""
    before = b"["
    async with aclosing(buckets):
        async for bucket in buckets:
            yield before + msgspec.json.encode(bucket)
            before = b","
    yield b"]" if before == b"," else b"[]"


def _bucket_pieces(buckets: Iterator[tuple[BucketInfo, Iterator[SegmentInfo]]]) -> Iterator[bytes]:
    """A JSON array of buckets, segment by segment: a bucket may have many thousands."""
    yield b"["
    before = b""
    for info, segments in buckets:
        head, name, tail = msgspec.json.encode(info).partition(b'"segments":[')
        yield before + head + name
        before = b""
        for segment in segments:
            yield before + msgspec.json.encode(segment)
            before = b","
        yield tail
        before = b","
    yield b"]"


def _object(request: Request) -> dict[str, object]:
    body = request.json()
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadRequest("expected a JSON object")
    return body


def _required(body: dict[str, object], key: str) -> object:
    if key not in body:
        raise BadRequest(f"{key} is missing")
    return body[key]


def _position(place: object) -> Position:
    ledger, separator, entry = place.partition(":") if isinstance(place, str) else ("", "", "")
    if not separator:
        raise BadRequest(f"expected a message as ledger:entry, not {place!r}")
    return Position(_number(ledger, "ledger"), _number(entry, "entry"))


def _number(text: str, name: str, lowest: int = 0, highest: int = NUMBER_MAX) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 19 and lowest <= int(text) <= highest:
        return int(text)
    bound = "" if highest == NUMBER_MAX else f" and at most {highest}"
    raise BadRequest(f"{name}: expected a whole number of at least {lowest}{bound}, not {text!r}")
