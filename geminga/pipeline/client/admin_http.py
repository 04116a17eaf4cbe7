"""The few questions that only a broker's admin API answers."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from geminga.client.admin import reason_of, topic_path
from geminga.names import TopicName
from geminga.pipeline.client.connection import tls_context
from geminga.pipeline.client.topics import Added, Ledger
from geminga.pipeline.errors import ADMIN_URL, Access, AdminRefused, PipelineError

HTTP_SECONDS = 10.0
CONNECTIONS_MAX = 8
_REDIRECTS_MAX = 5
_LOOKS_MAX = 5
"""At counters that belong together, until two looks agree."""


def get_json(access: Access, admin_url: str, path: str) -> Any:
    """Raises `PipelineError`."""
    body = _ask(access, admin_url, "GET", path)
    try:
        return json.loads(body)
    except ValueError:
        raise PipelineError(
            f"{admin_url}{path} does not answer with JSON; is ", ADMIN_URL, " right?"
        ) from None


def create_partitions(access: Access, admin_url: str, topic: str, partitions: int) -> None:
    """Make a partitioned topic that is not there, in a namespace that is. Raises `PipelineError`."""
    name = TopicName.parse(topic)
    try:
        _ask(access, admin_url, "PUT", f"{topic_path(name)}/partitions", json.dumps(partitions).encode())
    except AdminRefused as error:
        if error.status != 404:
            raise
        raise PipelineError(
            f"{topic} cannot be made: namespace {name.namespace} is not there; create it "
            f"(geminga or pulsar-admin namespaces create {name.namespace})"
        ) from None


def get_bytes(access: Access, admin_url: str, path: str) -> bytes:
    """Raises `AdminRefused`, `PipelineError`."""
    return _ask(access, admin_url, "GET", path)


def post_bytes(access: Access, admin_url: str, path: str, sent: bytes, *, seconds: float) -> Any:
    """The answer as JSON, which may take so long. Raises `AdminRefused`, `PipelineError`."""
    content = "application/octet-stream"
    return json.loads(_ask(access, admin_url, "POST", path, sent, content=content, seconds=seconds))


def _ask(
    access: Access,
    admin_url: str,
    method: str,
    path: str,
    sent: bytes | None = None,
    *,
    content: str = "application/json",
    seconds: float | None = None,
) -> bytes:
    """In `seconds` (default: `HTTP_SECONDS`) at most, for each redirection."""
    seconds = HTTP_SECONDS if seconds is None else seconds
    url = admin_url + path
    headers = {} if sent is None else {"Content-Type": content}
    if access.auth_method == "basic" and access.auth_data:
        headers["Authorization"] = f"Basic {base64.b64encode(access.auth_data).decode()}"
    if access.auth_method == "token" and access.auth_data:
        headers["Authorization"] = f"Bearer {access.auth_data.decode()}"
    for _ in range(_REDIRECTS_MAX):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PipelineError(ADMIN_URL, f" is {admin_url!r}; expected http://HOST:PORT")
        connection = _connection(access, parts.scheme, parts.hostname, parts.port, seconds)
        try:
            connection.connect()
            with _ended_after(seconds, connection.sock):
                connection.request(
                    method, parts.path + (f"?{parts.query}" if parts.query else ""), sent, headers=headers
                )
                response = connection.getresponse()
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise PipelineError(
                f"no admin API answers at {admin_url} ({error}); is ", ADMIN_URL, " right?"
            ) from None
        finally:
            connection.close()
        if response.status in (301, 302, 307, 308) and response.headers.get("location"):
            url = str(response.headers["location"])
            continue
        if response.status not in (200, 204):
            raise AdminRefused(response.status, url, reason_of(body)[:500])
        return body
    raise PipelineError(f"{url}: redirected too often")


@contextlib.contextmanager
def _ended_after(seconds: float, sock: socket.socket) -> Iterator[None]:
    """What is done with the socket here takes no longer, however bytes dribble. Raises `TimeoutError`."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
    if is_late.is_set():
        raise TimeoutError(f"no whole answer within {seconds:.0f} s")


def _connection(
    access: Access, scheme: str, host: str, port: int | None, seconds: float
) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=tls_context(access))
    return http.client.HTTPConnection(host, port, timeout=seconds)


def ledgers_of(access: Access, admin_url: str, topic: str) -> list[Ledger]:
    """The ledgers of a topic (a single partition), in order, the one being written too."""
    return _ledgers(_internal_stats(access, admin_url, topic))


def _internal_stats(access: Access, admin_url: str, topic: str) -> Any:
    return get_json(access, admin_url, f"{topic_path(TopicName.parse(topic))}/internalStats")


def _ledgers(stats: Any) -> list[Ledger]:
    found = [Ledger(int(one["ledgerId"]), int(one["entries"]), int(one["size"])) for one in stats["ledgers"]]
    if found and found[-1].entries == 0:
        found[-1] = Ledger(
            found[-1].ledger_id, int(stats["currentLedgerEntries"]), int(stats["currentLedgerSize"])
        )
    return found


def added_of(access: Access, admin_url: str, topic: str) -> Added | None:
    """What is left of a topic, and how much was added to it. None: too much is added meanwhile to tell."""
    before: Added | None = None
    for _ in range(_LOOKS_MAX):
        stats = _internal_stats(access, admin_url, topic)
        found = Added(int(stats["entriesAddedCounter"]), tuple(_ledgers(stats)))
        # A broker reads its counters one after the other, and messages come in between.
        if before is not None and found.begins_as(before):
            return found
        before = found
    return None


def added_of_all(access: Access, admin_url: str, topics: Sequence[str]) -> dict[str, Added | None]:
    """For each topic, several asked for at once. Raises `PipelineError`."""
    if not topics:
        return {}
    with ThreadPoolExecutor(min(CONNECTIONS_MAX, len(topics))) as threads:
        found = threads.map(lambda topic: added_of(access, admin_url, topic), topics)
        return dict(zip(topics, found, strict=True))


def ledgers_of_all(access: Access, admin_url: str, topics: Sequence[str]) -> dict[str, list[Ledger]]:
    """The ledgers of each topic, several asked for at once. Raises `PipelineError`."""
    if not topics:
        return {}
    with ThreadPoolExecutor(min(CONNECTIONS_MAX, len(topics))) as threads:
        found = threads.map(lambda topic: ledgers_of(access, admin_url, topic), topics)
        return dict(zip(topics, found, strict=True))
