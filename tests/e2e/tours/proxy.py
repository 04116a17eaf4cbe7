"""A proxy that records the HTTP requests of an admin client, and what the broker behind it answers.

    with RecordingProxy("http://localhost:8080") as proxy:
        run_the_client(proxy.web_url)
    proxy.exchanges["name of the call"]

A client that asks for `/-/call/NAME` says that its next requests belong to the call NAME.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

MARK: Final = "/-/call/"
ANSWER_SECONDS_MAX = 60.0
SENT_HEADERS: Final = ("Content-Type", "Accept")
ANSWERED_HEADERS: Final = ("content-type", "x-pulsar-")
"""How the names of those headers of an answer begin that clients look at."""


class Exchange(NamedTuple):
    """One request and its answer. A body is text."""

    method: str
    path: str
    """With the query."""
    headers: dict[str, str]
    body: str | None
    status: int
    answer_headers: dict[str, str]
    answer: Any
    """JSON; text as it is; `{"base64": ...}` of what is neither."""


def answer_of(raw: bytes) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(parsed, str) else parsed  # with its quotes: Go's client reads them


def looked_at(headers: list[tuple[str, str]]) -> dict[str, str]:
    """Those headers of an answer that clients look at, sorted, in lower case."""
    return {
        name.lower(): value for name, value in sorted(headers) if name.lower().startswith(ANSWERED_HEADERS)
    }


class RecordingProxy:
    """Serves on a free port of the loopback interface while the block runs."""

    def __init__(self, web_url: str, *, settling_s: float = 0.0) -> None:
        """`settling_s`: how long the answer to a change of a topic is held back; the real broker applies
        a topic's policies some time after its answer."""
        target = urlsplit(web_url)
        self.exchanges: dict[str, list[Exchange]] = {}
        self._call = ""
        self._target = target.hostname or "localhost", target.port or 80
        self._settling_s = settling_s
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: proxy._serve(self)
                raise AttributeError(name)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.web_url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, asked: BaseHTTPRequestHandler) -> None:
        if asked.path.startswith(MARK):
            self._call = asked.path.removeprefix(MARK)
            self.exchanges.setdefault(self._call, [])
            self._answer(asked, 204, [], b"")
            return
        body = _body(asked)
        sent = {name: value for name in SENT_HEADERS if (value := asked.headers.get(name)) is not None}
        connection = http.client.HTTPConnection(*self._target, timeout=ANSWER_SECONDS_MAX)
        try:
            connection.request(asked.command, asked.path, body, sent)
            response = connection.getresponse()
            raw, headers = response.read(), response.getheaders()
        finally:
            connection.close()
        exchange = Exchange(
            asked.command,
            asked.path,
            sent,
            None if body is None else body.decode(),
            response.status,
            looked_at(headers),
            answer_of(raw),
        )
        self.exchanges.setdefault(self._call, []).append(exchange)
        if asked.command != "GET" and "/persistent/" in asked.path:
            time.sleep(self._settling_s)  # noqa: TID251 - only while recording: it tells nobody when
        self._answer(asked, response.status, headers, raw)

    def _answer(
        self, asked: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], raw: bytes
    ) -> None:
        asked.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                asked.send_header(name, value)
        if status != 204:
            asked.send_header("Content-Length", str(len(raw)))
        asked.end_headers()
        asked.wfile.write(raw)


def _body(asked: BaseHTTPRequestHandler) -> bytes | None:
    if (length := asked.headers.get("Content-Length")) is not None:
        return asked.rfile.read(int(length))
    if asked.headers.get("Transfer-Encoding") != "chunked":
        return None
    body = b""
    while size := int(asked.rfile.readline().split(b";")[0], 16):
        body += asked.rfile.read(size)
        asked.rfile.readline()
    asked.rfile.readline()
    return body
