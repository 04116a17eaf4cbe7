"""What a payload can be wrong about, in words for the user of a command."""

from __future__ import annotations

from geminga.errors import GemingaError


class CannotDecode(GemingaError):
    """A payload is not what its metadata or its schema say, or this installation cannot unpack it."""


class CannotEncode(GemingaError):
    """A text is no value of the schema, or this installation cannot pack it."""
