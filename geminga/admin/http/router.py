"""Which handler answers a request. Pure: a method and a path in, a handler and its parameters out.

A pattern is a path whose segments are literal or a `{name}`, which stands for any one segment. Where both
fit, the literal one wins. Paths are split before they are percent-decoded, so an encoded slash stays inside
its segment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

import msgspec
import trio

from geminga.admin.http.unserved import Unserved
from geminga.errors import GemingaError, PeerError, ServiceNotReady

SEGMENTS_MAX = 32
JSON_COMMAS_MAX = 50_000
"""In a body: they bound how many values there are, and so the milliseconds for which the loop reads them. The
largest schema has fewer.
"""
QUERY_FIELDS_MAX = 64
WORD_MAX = 100
"""Characters of a path's word that an answer repeats."""


class BadRequest(PeerError):
    http_status = 400


class NotFound(PeerError):
    http_status = 404


class NotServed(PeerError):
    """A path below a word of Pulsar's API that this broker has no route for.

    Not a 404: Pulsar's clients take that as "no such object", or as the end of what they read.
    """

    http_status = 501


class NoSuchResource(NotFound):
    """A path of the API with a word that Pulsar does not have either."""


API_WORDS = {
    ("admin", "v2"): (
        *("bookies", "broker-stats", "brokers", "clusters", "functions", "namespaces", "non-persistent"),
        *("persistent", "proxy-stats", "resource-quotas", "resourcegroups", "schemas", "tenants", "worker"),
        "worker-stats",
    ),
    ("admin", "v3"): ("functions", "packages", "sink", "sinks", "source", "sources", "transactions"),
    ("lookup", "v2"): ("destination", "topic"),
    ("topics",): ("non-persistent", "persistent"),
}
"""What stands behind these beginnings of a path in Pulsar, also of versions before 4.0 and of its proxy."""


class MethodNotAllowed(PeerError):
    http_status = 405

    def __init__(self, allowed: str) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


class Request:
    """One request, its body read. `parameters` come from the path, `query` from behind the question mark."""

    __slots__ = (
        "accept",
        "accepts_gzip",
        "authorization",
        "body",
        "last_event_id",
        "local_host",
        "method",
        "parameters",
        "query",
        "segments",
    )

    def __init__(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        local_host: str = "localhost",
        *,
        accepts_gzip: bool = False,
        accept: str = "",
        authorization: str = "",
        last_event_id: str = "",
    ) -> None:
        """The last three are headers. Raises `BadRequest` for a target that is no path."""
        path, _, query = target.partition("?")
        if not path.startswith("/"):
            raise BadRequest("the request target must be a path")
        raw = path[1:].split("/")
        if raw[-1] == "":
            raw.pop()
        if len(raw) > SEGMENTS_MAX:
            raise BadRequest("the path has too many parts")
        try:
            self.segments = [unquote(part, errors="strict") for part in raw]
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
        except (UnicodeDecodeError, ValueError):
            raise BadRequest("the request target is not valid percent-encoded UTF-8") from None
        if not {".", ".."}.isdisjoint(self.segments):
            # As Jetty in Pulsar's broker: a route whose name is not looked at, as that of a cluster, would
            # answer, and a proxy in front may have taken the path for another one.
            raise BadRequest("a part of the path is . or .., which is no name")
        self.method = method
        self.query: dict[str, str] = dict(pairs)
        self.body = body
        self.accepts_gzip = accepts_gzip
        self.accept = accept
        self.authorization = authorization
        self.last_event_id = last_event_id
        self.local_host = local_host
        self.parameters: Mapping[str, str] = {}

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean query parameter, as Java reads it: anything but `true` is false."""
        value = self.query.get(name)
        return default if value is None else value.lower() == "true"

    def json(self) -> Any:
        """The body as JSON; None if it is empty. `BadRequest` if it is no JSON, or has too many values."""
        if not self.body.strip():
            return None
        if self.body.count(b",") > JSON_COMMAS_MAX:
            raise BadRequest(f"the body has more than {JSON_COMMAS_MAX} values")
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not valid JSON: {error}") from None


class Response(NamedTuple):
    status: int
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    """Values in ISO 8859-1, without control characters but tabs."""
    parts: AsyncGenerator[bytes, None] | None = None
    """In place of a body: taken one by one as the peer takes them, and closed early if it does not. What is
    raised before the first part is answered with its status, what is raised later ends the connection.
    """


Handler = Callable[[Request], Awaitable[Response]]


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(value), "application/json")


def streamed_json(parts: AsyncGenerator[bytes, None]) -> Response:
    """JSON that is encoded as it is sent."""
    return Response(200, content_type="application/json", parts=parts)


def text_response(text: str, content_type: str = "text/plain; charset=utf-8") -> Response:
    return Response(200, text.encode(), content_type)


NO_CONTENT = Response(204)


class Route(NamedTuple):
    """One row of the router, with the names of its parameters in braces."""

    method: str
    pattern: str
    handler: Handler
    walks: str = ""
    """What it looks at one by one and there may be ten thousand of: topics, partitions, subscriptions,
    namespaces, messages. Such a handler leaves turns to others: `tests/admin/routes/test_walks.py`.
    """


class _UnderWay:
    """A change that is being made, for which requests of the same wording wait."""

    __slots__ = ("done", "error", "response")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.response: Response | None = None
        self.error: GemingaError | None = None


class _Node:
    __slots__ = ("handlers", "literal", "parameter")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.handlers: dict[str, tuple[Handler, tuple[str, ...]]] = {}


class Router:
    """All routes. `add` them first; then `find`, or call it to answer a request."""

    def __init__(self) -> None:
        self._root = _Node()
        self.has_large_body = False
        """Kept by the server that uses this router."""
        self._large: set[Handler] = set()
        self._joining: set[Handler] = set()
        self._under_way: dict[tuple[object, ...], _UnderWay] = {}
        self._routes: list[Route] = []
        self.unserved = Unserved()

    def add(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        *,
        walks: str = "",
        joins: bool = False,
        large_body: bool = False,
    ) -> None:
        """`walks`: see `Route`. `joins`: a request that comes while the same one is under way, since its
        client has not waited, gets the answer of that one; twice must be as good as once. `large_body`: it
        takes more than requests usually bring.
        """
        node = self._root
        names = []
        for segment in pattern.strip("/").split("/") if pattern != "/" else ():
            if segment.startswith("{"):
                names.append(segment[1:-1])
                if node.parameter is None:
                    node.parameter = _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        assert method not in node.handlers, f"{method} {pattern} twice"
        node.handlers[method] = handler, tuple(names)
        self._routes.append(Route(method, pattern, handler, walks))
        if joins:
            self._joining.add(handler)
        if large_body:
            self._large.add(handler)

    async def prepare(self) -> None:
        """Nothing: all routes are here."""

    def takes_large_body(self, method: str, target: str) -> bool:
        """True if this request is for a route that takes a large body."""
        try:
            handler, _ = self.find(method, Request(method, target).segments)
        except PeerError:
            return False
        return handler in self._large

    def find(self, method: str, segments: list[str]) -> tuple[Handler, dict[str, str]]:
        """Raises `NotServed` or `NotFound` for a path without handlers, `MethodNotAllowed` for a method
        without one.
        """
        asked = method
        method = "GET" if method == "HEAD" else method
        found = _walk(self._root, segments, 0, method)
        if found is None:
            other = _walk(self._root, segments, 0, None)
            if other is None:
                raise _no_route(asked, segments)
            raise MethodNotAllowed(_allowed(other[0]))
        node, values = found
        handler, names = node.handlers[method]
        return handler, dict(zip(names, values, strict=True))

    async def __call__(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return self._options(request)
        try:
            handler, request.parameters = self.find(request.method, request.segments)
            return await (self._joined(handler, request) if handler in self._joining else handler(request))
        except (NotServed, NoSuchResource, MethodNotAllowed) as error:
            self.unserved.count(request.method, request.segments, error.http_status)
            raise

    async def _joined(self, handler: Handler, request: Request) -> Response:
        key = (request.method, *request.segments, *sorted(request.query.items()), request.body)
        running = self._under_way.get(key)
        if running is None:
            running = self._under_way[key] = _UnderWay()
            try:
                running.response = await handler(request)
            except GemingaError as error:
                running.error = error
                raise
            finally:
                del self._under_way[key]
                running.done.set()
            return running.response
        await running.done.wait()
        if running.error is not None:
            raise running.error
        if running.response is None:
            raise ServiceNotReady("the same request was under way and has failed; try again")
        return running.response

    def _options(self, request: Request) -> Response:
        found = _walk(self._root, request.segments, 0, None)
        if found is None:
            raise _no_route(request.method, request.segments)
        return Response(200, headers=(("Allow", _allowed(found[0])),))

    def routes(self) -> list[Route]:
        """In the order in which they were added."""
        return list(self._routes)

    def patterns(self) -> list[tuple[str, str]]:
        """Every (method, pattern), for tests and documentation."""
        return sorted(_patterns(self._root, ""))


def _no_route(method: str, segments: list[str]) -> PeerError:
    for prefix, words in API_WORDS.items():
        if tuple(segments[: len(prefix)]) == prefix:
            word = next(iter(segments[len(prefix) :]), "")
            if word not in words:
                return NoSuchResource(_no_such_word("/".join(prefix), word, words))
            path = "/".join(quote(segment, safe="") for segment in segments)
            return NotServed(f"{method} /{path} is not served by Geminga")
    return NotFound("Not Found")


def _no_such_word(prefix: str, word: str, words: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word[:WORD_MAX], words, n=1)
    hint = f"; did you mean /{prefix}/{near[0]}?" if near else ""
    return f"Pulsar's API has no /{prefix}/{quote(word[:WORD_MAX], safe='')}{hint}"


def _walk(node: _Node, segments: list[str], depth: int, method: str | None) -> tuple[_Node, list[str]] | None:
    """The node that the segments lead to, with a handler for `method` (None: for any), and the parameters."""
    if depth == len(segments):
        fits = bool(node.handlers) if method is None else method in node.handlers
        return (node, []) if fits else None
    segment = segments[depth]
    literal = node.literal.get(segment)
    if literal is not None and (found := _walk(literal, segments, depth + 1, method)):
        return found
    if (
        node.parameter is not None
        and segment
        and (found := _walk(node.parameter, segments, depth + 1, method))
    ):
        return found[0], [segment, *found[1]]
    return None


def _allowed(node: _Node) -> str:
    methods = {*node.handlers, "OPTIONS"}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def _patterns(node: _Node, path: str) -> list[tuple[str, str]]:
    found = [(method, path) for method in node.handlers]
    for segment, child in node.literal.items():
        found += _patterns(child, f"{path}/{segment}")
    if node.parameter is not None:
        found += _patterns(node.parameter, f"{path}/{{}}")
    return found
