"""Success of a change whose effect is not the one that it has in Pulsar: a `Warning` header says so."""

from __future__ import annotations

from geminga.admin.http.router import Response


def without_effect(subject: str, status: int = 204, body: bytes = b"") -> Response:
    """Success of a change that is kept and shown, and that nothing in this broker goes by. `subject` is ASCII
    without quotes.
    """
    return with_warning(f"{subject} is stored and shown, and has no effect in this broker", status, body)


def with_warning(text: str, status: int = 204, body: bytes = b"") -> Response:
    """Success with a `Warning` header, which the command line prints. `text` is ASCII without quotes."""
    return Response(status, body, "application/json" if body else "", (("Warning", f'299 geminga "{text}"'),))
