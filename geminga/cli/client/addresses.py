"""The two addresses of a broker, each found by the other: `pulsar://` for messages, `http://` for admin.

Blocking calls of a few seconds at most; nothing here is durable or kept.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from geminga.cli.client.errors import ClientError

WEB_PORT = 8080
SERVICE_PORT = 6650
SECONDS_MAX = 5
PROBE_SECONDS_MAX = 2
COMMAND_VARIABLE = "GEMINGA_COMMAND"
"""What the user called to come here, if that was not `geminga`: `run.py` sets it."""
_ANY_TOPIC = "/lookup/v2/topic/persistent/public/default/which-broker"
_LOCAL = {"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"}
_LISTENS = "0A"


class NotAnAddress(ClientError):
    """Nothing that a broker could have as its address."""


def start_one() -> str:
    """What to do if no broker runs, in words that work where this program was called from."""
    return f"start one: {standalone()}"


def standalone(flags: str = "") -> str:
    command = os.environ.get(COMMAND_VARIABLE) or "geminga"
    return f"{command} standalone {flags}".rstrip()


def is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def service_url(url: str) -> str:
    """The `pulsar://` address of the broker at `url`, which may be either. Raises `ClientError`."""
    if not is_web(url):
        return url
    for path in (_ANY_TOPIC, *_clusters(url)):
        answer = _get(url, path)
        found = (
            (answer.get("brokerUrl") or answer.get("brokerServiceUrl")) if isinstance(answer, dict) else None
        )
        if isinstance(found, str) and found.startswith("pulsar://"):
            return _seen_from_here(found.partition(",")[0], url)
    if _get(url, "/admin/v2/clusters") is None:
        raise ClientError(f"{url}: {wrong_scheme(url) or f'no broker answers there; {start_one()}'}")
    raise ClientError(f"{url}: the broker does not tell its pulsar:// address; give it with --url")


def web_url(url: str) -> str:
    """The `http://` address of the broker at `url`, which may be either. Raises `ClientError`."""
    try:
        parts = urlsplit(url if "://" in url else f"pulsar://{url}")
        scheme, host, port = parts.scheme, parts.hostname, parts.port or SERVICE_PORT
    except ValueError:
        scheme, host, port = "", None, 0
    if not host or scheme not in ("pulsar", "http", "https"):
        raise NotAnAddress(f"{url}: not an address; expected http://HOST:PORT or pulsar://HOST:PORT")
    if scheme != "pulsar":
        return url.rstrip("/")
    shown = f"[{host}]" if ":" in host else host
    candidates = list(sibling_ports(port)) if host in _LOCAL else []
    for web_port in dict.fromkeys([*candidates, WEB_PORT]):
        candidate = f"http://{shown}:{web_port}"
        if isinstance(_get(candidate, "/admin/v2/clusters"), list):
            return candidate
    if _answers_http(f"http://{shown}:{port}"):
        raise ClientError(f"{url}: this port speaks HTTP; write http://{shown}:{port}")
    raise ClientError(
        f"{url}: no admin API found beside it (tried port {WEB_PORT}); "
        f"give its http:// address with --url, or {start_one()}"
    )


def wrong_scheme(url: str, error: Exception | None = None) -> str:
    """What an http:// or https:// address should be, if its port answers to another one; else "". Asks the
    port, unless the error that came of `url` has another cause.
    """
    from ssl import SSLError

    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError) or not isinstance(
        reason, ConnectionError | SSLError | None
    ):
        return ""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if parts.scheme == "https" and _answers_http(f"http://{place}"):
        return f"this port has no TLS; write http://{place}"
    if _speaks_binary(host, port):
        return f"this port speaks Pulsar's binary protocol; write pulsar://{place}"
    return ""


def _answers_http(url: str) -> bool:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        urlopen(f"{url}/admin/v2/clusters", timeout=PROBE_SECONDS_MAX).close()
    except HTTPError:
        return True
    except (OSError, ValueError, HTTPException):
        return False
    return True


def _speaks_binary(host: str, port: int) -> bool:
    """Whether CONNECT is answered with a command, be it a refusal."""
    import socket

    from geminga import __version__
    from geminga.client.session import Session

    answer = b""
    try:
        with socket.create_connection((host, port), timeout=PROBE_SECONDS_MAX) as found:
            found.sendall(Session().connect(f"geminga-cli-{__version__}"))
            while len(answer) < 8 and (part := found.recv(1024)):
                answer += part
    except OSError:
        return False
    # A command without a payload: its length with that of its length, and its length.
    sizes = int.from_bytes(answer[:4]), int.from_bytes(answer[4:8])
    return len(answer) >= 8 and sizes[0] == sizes[1] + 4


def _seen_from_here(found: str, url: str) -> str:
    """What a broker calls `localhost` is the host that it was asked at."""
    asked = urlsplit(url).hostname or ""
    parts = urlsplit(found)
    if parts.hostname in _LOCAL and asked not in _LOCAL:
        host = f"[{asked}]" if ":" in asked else asked
        return f"pulsar://{host}:{parts.port or SERVICE_PORT}"
    return found


def _clusters(url: str) -> Iterator[str]:
    answer = _get(url, "/admin/v2/clusters")
    for name in answer if isinstance(answer, list) else ():
        if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name):
            yield f"/admin/v2/clusters/{name}"


def _get(url: str, path: str) -> Any:
    """The answer's JSON; None if there is none."""
    from urllib.request import urlopen

    try:
        with urlopen(url.rstrip("/") + path, timeout=SECONDS_MAX) as response:
            return json.loads(response.read(1 << 20))
    except (OSError, ValueError):
        return None


def sibling_ports(port: int = 0, *, pid: int | None = None) -> Iterator[int]:
    """The other TCP ports of the process that listens on `port`; of the process `pid`, all. Nothing if the
    system does not say.
    """
    ports = dict(_listening())
    if pid is not None:
        yield from sorted({ports[inode] for inode in _sockets_of(Path(f"/proc/{pid}")) if inode in ports})
        return
    found = process_at(port, ports)
    if found is not None:
        yield from (other for other in sibling_ports(pid=found) if other != port)


def process_at(port: int, ports: dict[str, int] | None = None) -> int | None:
    """The process that listens on a TCP port; None if the system does not say."""
    known = dict(_listening()) if ports is None else ports
    wanted = {inode for inode, of in known.items() if of == port}
    if wanted:
        for process in Path("/proc").glob("[0-9]*"):
            if _sockets_of(process) & wanted:
                return int(process.name)
    return None


def _sockets_of(process: Path) -> set[str]:
    """Inodes of the sockets that a process has."""
    found = set()
    try:
        for link in (process / "fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return set()  # another user's process, or one that has just ended
    return found


def _listening() -> Iterator[tuple[str, int]]:
    """Inode and port of each listening TCP socket."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTENS:
                yield fields[9], int(fields[1].rpartition(":")[2], 16)
