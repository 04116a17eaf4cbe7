"""Numbers out of a request's path and query."""

from __future__ import annotations

from typing import Final

from geminga.admin.http.router import NotFound

NUMBER_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1


def whole_number(text: str, number_max: int = NUMBER_MAX) -> int:
    """A number of Java's, perhaps below 0. A path with anything else there does not exist."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) <= number_max):
        raise NotFound("Not Found")
    return int(text)
