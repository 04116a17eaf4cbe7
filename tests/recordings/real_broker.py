"""Checks, before anything is recorded, that a broker is a real Pulsar with the settings a recording needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.admin_http import Admin, Answer
from tests.e2e.binary_session import BinarySession, ConnectionEnded

PULSAR_VERSION = re.compile(r"4\.0\.\d+")
GEMINGA_ONLY_PATH = "/geminga/v1/memory"
"""Geminga's admin API calls itself Pulsar's; this path exists in no Pulsar."""
SERVER_VERSION_PREFIX = "Pulsar Server"
"""How a real broker's CONNECTED begins; its version follows."""


class UnfitBroker(Exception):
    """The broker that was asked is not the one whose answers should be recorded."""


def checked_version(service_url: str, web_url: str, settings: Mapping[str, str]) -> str:
    """The version of the Pulsar 4.0.x that answers at both URLs, if it has these settings.

    Raises UnfitBroker with every reason if not. Changes nothing in the broker.
    """
    admin = Admin(web_url)
    try:
        version = _answer(admin, "/admin/v2/brokers/version").text.strip()
        if not PULSAR_VERSION.fullmatch(version):
            raise UnfitBroker(f"{web_url} is a broker of version {version!r}, not a Pulsar 4.0.x")
        if admin.get(GEMINGA_ONLY_PATH).status != 404:
            raise UnfitBroker(f"{web_url} is a Geminga: it knows {GEMINGA_ONLY_PATH}")
        parts = urlsplit(service_url)
        with BinarySession((parts.hostname or "localhost", parts.port or 6650)) as session:
            server_version = session.connect().server_version
        if server_version != SERVER_VERSION_PREFIX + version:
            raise UnfitBroker(f"{service_url} is {server_version!r}, another broker than {web_url}")
        configuration = json.loads(_answer(admin, "/admin/v2/brokers/configuration/runtime").body)
    except (OSError, ValueError, ConnectionEnded) as error:
        raise UnfitBroker(f"no broker answers at {service_url} and {web_url}: {error!r}") from error
    if different := different_settings(settings, configuration):
        raise UnfitBroker("the broker has other settings than the recording needs: " + "; ".join(different))
    return version


def _answer(admin: Admin, path: str) -> Answer:
    answer = admin.get(path)
    if answer.status != 200:
        raise UnfitBroker(f"GET {path} is answered with {answer.status}")
    return answer


def different_settings(needed: Mapping[str, str], configuration: Mapping[str, Any]) -> list[str]:
    """`key=found, needs value` for each setting whose value in the runtime configuration differs."""
    return [
        f"{key}={configuration.get(key)}, needs {value}"
        for key, value in needed.items()
        if _plain(configuration.get(key)) != _plain(value)
    ]


def _plain(value: str | None) -> str | None:
    """A value without what is only notation: brackets, spaces and the order of a list; `4` for `4.0`."""
    if value is None:
        return None
    items = [item.strip() for item in value.removeprefix("[").removesuffix("]").split(",")]
    return ",".join(sorted(item.removesuffix(".0") for item in items))
