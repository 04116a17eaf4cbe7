"""The admin API as a command calls it: one request, its answer, or a line that says what went wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from geminga.cli.arguments.options import WEB_URL_VARIABLE
from geminga.cli.client.addresses import start_one, web_url, wrong_scheme
from geminga.cli.client.errors import ClientError
from geminga.client import admin
from geminga.config.operator_token import operator_headers
from geminga.errors import GemingaError
from geminga.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.request import Request

SECONDS_MAX = 60


class RequestFailed(GemingaError):
    """The broker refused, or did not answer."""

    def __init__(self, reason: str, status: str = "") -> None:
        """`status` is that of the answer: `404 Not Found`."""
        super().__init__(reason)
        self.status = status


class Raw(NamedTuple):
    """A body that is sent as it is."""

    content: bytes
    media_type: str = "application/json"


class Answer(NamedTuple):
    headers: Mapping[str, str]
    """In any case."""
    content: bytes


class Admin:
    """The admin API at one address."""

    def __init__(self, url: str, *, seconds_max: float = SECONDS_MAX) -> None:
        """`url` is either address of the broker. `RequestFailed` if the admin API is not found beside it."""
        try:
            self.url = web_url(url)
        except ClientError as error:
            raise RequestFailed(str(error)) from None
        self._seconds_max = seconds_max

    def call(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The answer's JSON, its text if it is none, None if it is empty. `RequestFailed` with the broker's
        own reason.
        """
        return _parsed(self.fetch(method, path, body, **query).content)

    def fetch(self, method: str, path: str, body: object = None, **query: object) -> Answer:
        """The answer as it is. A list in `query` is a parameter for each item. Raises `RequestFailed`."""
        with self._opened(self._request(method, path, body, **query)) as response:
            answer = Answer(dict(response.headers), response.read())
        if warning := answer.headers.get("Warning", ""):
            print(f"warning: {warning.partition(chr(34))[2].rstrip(chr(34)) or warning}", file=sys.stderr)
        return answer

    def sent(self, path: str, **query: object) -> Iterator[tuple[str, str]]:
        """Fields and values of server-sent events, as they come, until the broker ends the answer. Raises
        `RequestFailed`, also for a connection that breaks.
        """
        request = self._request("GET", path, **query)
        request.add_header("Accept", "text/event-stream")
        with self._opened(request) as response:
            for line in response:
                field, colon, value = line.decode().rstrip("\n").partition(":")
                # A comment has no field.
                if colon and field:
                    yield field, value.removeprefix(" ")

    def _request(self, method: str, path: str, body: object = None, **query: object) -> Request:
        from urllib.request import Request

        asked = urlencode(
            {key: _text(value) for key, value in query.items() if value is not None}, doseq=True
        )
        request = Request(f"{self.url}{path}{'?' if asked else ''}{asked}", method=method)
        for name, value in operator_headers(os.environ, path).items():
            request.add_header(name, value)
        if body is not None:
            raw = body if isinstance(body, Raw) else Raw(json.dumps(body).encode())
            request.add_header("Content-Type", raw.media_type)
            request.data = raw.content
        return request

    @contextmanager
    def _opened(self, request: Request) -> Iterator[HTTPResponse]:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import urlopen

        try:
            with urlopen(request, timeout=self._seconds_max) as response:
                yield response
        except HTTPError as error:
            status = f"{error.code} {error.reason}"
            raise RequestFailed(admin.reason_of(error.read()) or status, status) from None
        # The last one if the broker ends in the middle of an answer.
        except (URLError, OSError, ValueError, HTTPException) as error:
            raise RequestFailed(unreachable(self.url, error)) from None


def unreachable(url: str, error: Exception) -> str:
    """Why there was no answer. If the connection was refused, also what the user can do."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError):
        return f"{url}: nothing listens there; {start_one()}; --url or ${WEB_URL_VARIABLE} name another"
    if wrong := wrong_scheme(url, error):
        return f"{url}: {wrong}"
    if isinstance(reason, ConnectionError):
        return f"{url}: no HTTP server answers there; of a broker's binary port write pulsar://HOST:PORT"
    return f"{url}: {reason}"


def _parsed(answer: bytes) -> Any:
    """Pulsar answers strings as they are, without quotes."""
    try:
        return json.loads(answer) if answer.strip() else None
    except ValueError:
        return answer.decode(errors="replace")


def _text(value: object) -> str | list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def namespace_path(text: str) -> str:
    """The path of `tenant/namespace`."""
    return admin.namespace_path(NamespaceName.parse(text))


def topic_path(text: str) -> str:
    """The path of a topic, named in full or by its last part in public/default."""
    return admin.topic_path(TopicName.parse(text))


def partition_of(text: str) -> int:
    """The number of the partition that a topic's name says it is, -1: none."""
    return TopicName.parse(text).partition_index
