"""A small S3 server on loopback: as much of the protocol as a file system needs, objects in memory.

`moto` knows more of it, and is what `tests/pipeline/exactness/object_store.py` takes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_NO_KEY = f"{_HEAD}<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"


@dataclass
class Store:
    """What the server holds."""

    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    on_put: Callable[[str], None] = lambda key: None
    """Called before an object gets its content; `PermissionError` refuses it."""
    settings: dict[str, str] = field(default_factory=dict)
    """How to reach it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        bucket, key, query = self._asked()
        if bucket != BUCKET:
            self._answer(404, _NO_KEY.replace("NoSuchKey", "NoSuchBucket").encode())
        elif not key:
            self._list(query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
        else:
            self._object(key)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        _, key, query = self._asked()
        body = self._body()
        if "uploadId" in query:
            self.store.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            return self._put(key, body, b"")
        self._answer(200, b"", {"ETag": '"x"'})

    def do_POST(self) -> None:
        _, key, query = self._asked()
        body = self._body()
        if "delete" in query:
            for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                self.store.objects.pop(unquote(name), None)
            self._answer(200, f"{_HEAD}<DeleteResult/>".encode())
        elif "uploads" in query:
            name = f"upload{len(self.store.uploads)}"
            self.store.uploads[name] = {}
            said = f"{_HEAD}<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
            self._answer(200, f"{said}</InitiateMultipartUploadResult>".encode())
        else:
            parts = self.store.uploads.pop(query["uploadId"][0])
            said = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
            self._put(key, b"".join(parts[number] for number in sorted(parts)), f"{_HEAD}{said}".encode())

    def _put(self, key: str, data: bytes, said: bytes) -> None:
        try:
            self.store.on_put(key)
        except PermissionError:
            return self._answer(403, b"")
        self.store.objects[key] = data
        self._answer(200, said, {"ETag": '"x"'})

    def do_DELETE(self) -> None:
        _, key, query = self._asked()
        if "uploadId" in query:
            self.store.uploads.pop(query["uploadId"][0], None)
        else:
            self.store.objects.pop(key, None)
        self._answer(204, b"")

    def _asked(self) -> tuple[str, str, dict[str, list[str]]]:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        return bucket, key, parse_qs(url.query, keep_blank_values=True)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b"".join(iter(self._chunk, b""))
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        parts, at = [], 0
        while at < len(data):
            end = data.index(b"\r\n", at)
            size = int(data[at:end].partition(b";")[0], 16)
            if size == 0:
                break
            parts.append(data[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        return b"".join(parts)

    def _chunk(self) -> bytes:
        """Of a body in HTTP's chunks; empty at its end."""
        data = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return data

    def _list(self, prefix: str, delimiter: str) -> None:
        contents, prefixes = [], set()
        for key in sorted(self.store.objects):
            if not key.startswith(prefix):
                continue
            first, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                prefixes.add(f"{prefix}{first}{delimiter}")
                continue
            size = len(self.store.objects[key])
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        both = [
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(prefixes)
        ]
        count = f"<KeyCount>{len(contents) + len(both)}</KeyCount><IsTruncated>false</IsTruncated>"
        text = f"{_HEAD}<ListBucketResult>{count}{''.join(contents)}{''.join(both)}</ListBucketResult>"
        self._answer(200, text.encode())

    def _object(self, key: str) -> None:
        data = self.store.objects.get(key)
        if data is None:
            return self._answer(404, _NO_KEY.encode())
        more = {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, data, more)
        first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        more["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], more)

    def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def s3_server() -> Iterator[Store]:
    """A server until the block is left, with an empty bucket."""
    store = Store()
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    store.settings = {
        "fs.s3a.endpoint": f"http://127.0.0.1:{server.server_port}",
        "fs.s3a.access.key": "test",
        "fs.s3a.secret.key": "test-secret",
    }
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
