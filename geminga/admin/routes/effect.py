"""Success of a change that is kept and shown, and that nothing in this broker goes by: a header says so."""

from __future__ import annotations

from geminga.admin.http.router import Response


def without_effect(subject: str, status: int = 204, body: bytes = b"") -> Response:
    """A `Warning` header, which the command line prints. `subject` is ASCII without quotes."""
    text = f"{subject} is stored and shown, and has no effect in this broker"
    return Response(status, body, "application/json" if body else "", (("Warning", f'299 geminga "{text}"'),))
