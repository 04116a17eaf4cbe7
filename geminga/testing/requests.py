"""Requests to a broker's admin API, from tests."""

from __future__ import annotations

import json
import os
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from geminga.client.admin import reason_of
from geminga.config.operator_token import operator_headers
from geminga.errors import GemingaError

SECONDS_MAX: Final = 3600.0
"""A move of the clock answers when it is over."""


class Refused(GemingaError):
    """The broker's own reason, and the request that it refused."""


def ask(web_url: str, method: str, path: str, body: object = None) -> Any:
    """The answer's JSON; None if it is empty. Raises `Refused`, and OSError if no broker answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **operator_headers(os.environ, path)}
    request = Request(web_url + path, data, headers, method=method)
    try:
        with urlopen(request, timeout=SECONDS_MAX) as response:
            answer = response.read()
    except HTTPError as error:
        reason = reason_of(error.read()) or error.reason
        raise Refused(f"{method} {path}: {error.code}: {reason}") from None
    return json.loads(answer) if answer else None


def ask_bytes(web_url: str, path: str) -> tuple[dict[str, str], bytes]:
    """Headers, in lower case, and body of a GET. Raises `Refused`."""
    try:
        with urlopen(web_url + path, timeout=SECONDS_MAX) as response:
            return {name.lower(): value for name, value in response.headers.items()}, response.read()
    except HTTPError as error:
        raise Refused(f"GET {path}: {error.code}: {reason_of(error.read()) or error.reason}") from None
