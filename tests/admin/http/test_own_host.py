"""Which requests are refused because a web page of another site may have sent them."""

from __future__ import annotations

import pytest

from geminga.admin.http.own_host import OwnHost

ANSWERED = ""
NAME, SITE, ORIGIN = "is no name of this broker", "of another site", "of another origin"
NAMES = ["127.0.0.1", "broker.example", "my-machine"]


def refusal(own: OwnHost, method: str, headers: str) -> str:
    """`headers` as they are written, `; ` between them."""
    fields = [line.partition(": ") for line in headers.split("; ") if line]
    return own.refusal(method, [(name.lower().encode(), value.encode()) for name, _, value in fields]) or ""


@pytest.mark.parametrize(
    ("method", "headers", "on_loopback", "beyond"),
    [
        # Scrapes, admin clients, curl, HTTP/1.0.
        ("GET", "Host: 127.0.0.1:8080", ANSWERED, ANSWERED),
        ("PUT", "Host: localhost:8080", ANSWERED, ANSWERED),
        ("PUT", "Host: LOCALHOST.", ANSWERED, ANSWERED),
        ("PUT", "Host: [::1]:8080", ANSWERED, ANSWERED),
        ("PUT", "Host: [::1]", ANSWERED, ANSWERED),
        ("PUT", "Host: 192.168.1.7:8080", ANSWERED, ANSWERED),
        ("PUT", "Host: broker.example:8080", ANSWERED, ANSWERED),
        ("PUT", "Host: My-Machine:8080", ANSWERED, ANSWERED),
        ("PUT", "Host: listed.example", ANSWERED, ANSWERED),
        ("GET", "Host: pulsar-service:8080", NAME, ANSWERED),
        ("PUT", "Host: pulsar-service:8080", NAME, ANSWERED),
        ("PUT", "", ANSWERED, ANSWERED),
        # DNS rebinding: the page's own name leads here.
        ("GET", "Host: evil.com", NAME, ANSWERED),
        ("PUT", "Host: evil.com:8080; Origin: http://evil.com:8080", NAME, NAME),
        ("GET", "Host: evil.com:8080; Origin: http://evil.com:8080", NAME, NAME),
        ("GET", "Host: evil.com:8080; Sec-Fetch-Mode: cors", NAME, NAME),
        ("OPTIONS", "Host: evil.com:8080; Sec-Fetch-Site: same-origin", NAME, NAME),
        ("PUT", "Host: localhost.evil.com:8080", NAME, ANSWERED),
        ("PUT", "Host: 127.0.0.1.evil.com; Origin: http://127.0.0.1.evil.com", NAME, NAME),
        ("PUT", "Host: @; Origin: http://@", NAME, NAME),
        # Cross-site request forgery: a page of another host, or of another port of the same one.
        ("POST", "Host: localhost:8080; Origin: http://evil.com", ORIGIN, ORIGIN),
        ("POST", "Host: 192.168.1.7:8080; Origin: http://evil.com; Content-Type: text/plain", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: http://localhost:3000", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: https://localhost:3000", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: http://localhost", ORIGIN, ORIGIN),
        ("POST", "Host: localhost; Origin: https://localhost:8443", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: null", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: ", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: http://localhost:8080@evil.com", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: http://[::1", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: http://localhost:99999", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Origin: chrome-extension://localhost", ORIGIN, ORIGIN),
        (
            "POST",
            f"Host: localhost:{'9' * 5000}; Origin: http://localhost",
            ORIGIN,
            ORIGIN,
        ),
        ("POST", "Origin: http://evil.com", ORIGIN, ORIGIN),
        ("POST", "Host: localhost:8080; Sec-Fetch-Site: cross-site", SITE, SITE),
        ("POST", "Host: localhost:8080; Sec-Fetch-Site: same-site", SITE, SITE),
        ("DELETE", "Host: localhost:8080; Sec-Fetch-Site: Cross-Site", SITE, SITE),
        # The broker's own pages, and those that the user trusts.
        ("POST", "Host: localhost:8080; Origin: http://localhost:8080", ANSWERED, ANSWERED),
        (
            "POST",
            "Host: localhost:8080; Origin: http://LOCALHOST:8080; Sec-Fetch-Site: same-origin",
            ANSWERED,
            ANSWERED,
        ),
        ("POST", "Host: localhost; Origin: http://localhost:80", ANSWERED, ANSWERED),
        ("POST", "Host: localhost:443; Origin: https://localhost", ANSWERED, ANSWERED),
        ("POST", "Host: [::1]:8080; Origin: http://[::1]:8080", ANSWERED, ANSWERED),
        ("POST", "Host: localhost:8080; Sec-Fetch-Site: none", ANSWERED, ANSWERED),
        ("POST", "Host: localhost:8080; Origin: https://listed.example", ANSWERED, ANSWERED),
        ("POST", "Host: localhost:8080; Origin: http://listed.example:3000", ANSWERED, ANSWERED),
        # Reading hurts nobody: the browser does not let the page see the answer.
        ("GET", "Host: localhost:8080; Origin: http://evil.com", ANSWERED, ANSWERED),
        ("GET", "Host: localhost:8080; Sec-Fetch-Site: cross-site", ANSWERED, ANSWERED),
    ],
)
def test_who_is_refused(method: str, headers: str, on_loopback: str, beyond: str) -> None:
    for is_loopback, expected in ((True, on_loopback), (False, beyond)):
        found = refusal(OwnHost(NAMES, listed=["Listed.example"], is_loopback=is_loopback), method, headers)
        assert expected in found if expected else found == "", (is_loopback, found)


def test_a_refusal_says_how_to_be_answered() -> None:
    own = OwnHost([], is_loopback=True)
    assert refusal(own, "GET", "Host: evil.com:8080") == (
        "'evil.com' is no name of this broker; use an address or localhost, "
        "or list the name in gemingaWebServiceHostNames"
    )
