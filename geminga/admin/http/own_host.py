"""Refuses requests from web pages of other sites. Pure: headers in, a reason to refuse out.

There is no authentication, so network reach is the only border, and a web browser inside it carries requests
of any page across. Two ways are closed here. With DNS rebinding, a page's name resolves to the broker's
address; the browser then takes the broker for the page's own site, but sends that name in `Host`. With
cross-site request forgery, a page posts to the broker's address; the browser names the page in `Origin` or
`Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SETTING = "gemingaWebServiceHostNames"
DEFAULT_PORTS = {"http": 80, "https": 443}
OTHER_SITES = frozenset({"cross-site", "same-site"})


class OwnHost:
    """The names that the broker goes by, on one listening socket."""

    def __init__(self, names: Iterable[str], *, listed: Iterable[str] = (), is_loopback: bool) -> None:
        """`listed` are the names of the setting: a page from a host of that name, on any port, may change
        things. `is_loopback`: only this machine reaches the socket, so a foreign name can only come from
        a page.
        """
        self._listed = frozenset(map(_normal, listed))
        self._names = frozenset(map(_normal, names)) | self._listed | {"localhost"}
        self._is_loopback = is_loopback

    def refusal(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Why a request is refused (403), or None. Header names are in small letters, as h11 gives them."""
        fields = {name: value.decode("latin-1").strip() for name, value in headers}
        host = fields.get(b"host", "")
        from_page = b"origin" in fields or any(name.startswith(b"sec-fetch-") for name in fields)
        # Without a Host (HTTP/1.0) it is no browser.
        if host and (self._is_loopback or from_page) and not self._is_own(_host_name(host)):
            return (
                f"{_host_name(host)!r} is no name of this broker; use an address or localhost, "
                f"or list the name in {SETTING}"
            )
        if method in SAFE_METHODS:
            return None
        if fields.get(b"sec-fetch-site", "").lower() in OTHER_SITES:
            return "changes from a web page of another site are refused"
        if b"origin" in fields and not self._is_own_origin(fields[b"origin"], host):
            return (
                "changes from a web page of another origin are refused; "
                f"if the page is yours, list its host in {SETTING}"
            )
        return None

    def _is_own(self, name: str) -> bool:
        return name in self._names or _is_address(name)

    def _is_own_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
            name, port = _normal(parts.hostname or ""), parts.port
        except ValueError:
            return False
        default = DEFAULT_PORTS.get(parts.scheme)
        if default is None or not name:
            return False  # "null", or a page of an extension or a file
        return name in self._listed or (name, port or default) == (_host_name(host), _port(host) or default)


def _host_name(host: str) -> str:
    """`[::1]:8080` without port and brackets."""
    if host.startswith("["):
        return _normal(host[1:].partition("]")[0])
    return _normal(host.partition(":")[0])


def _port(host: str) -> int | None:
    digits = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    # Six digits are more than any port has, and Python refuses to read thousands of them.
    return int(digits[:6]) if digits.isascii() and digits.isdigit() else None


def _normal(name: str) -> str:
    return name.strip().rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
