"""What `produce` sends: payloads and keys made of its flags, by their schemas. Nothing here waits."""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from geminga.cli.client.errors import ClientError
from geminga.cli.payloads import schemas
from geminga.cli.payloads.errors import CannotEncode
from geminga.cli.payloads.schemas import Schema


class Body(NamedTuple):
    payload: bytes
    key: str | None
    is_key_base64: bool = False


class Bodies:
    """Makes bodies as the flags say. Raises `CannotEncode` for what is no value of its schema."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._value = schemas.parsed(_definition(flags.value_schema))
        self._key_text: str | None = flags.key
        self._is_separated = flags.key_value_encoding == "separated"
        self._key: bytes | None = None
        self.schema: Schema | None = self._value
        """What to register with the topic; None: bytes."""
        if flags.key_value_encoding is not None:
            key_schema = schemas.parsed(_definition(flags.key_schema))
            self.schema = schemas.key_value_schema(key_schema, self._value, separated=self._is_separated)
            if flags.key_value_key_file is not None:
                self._key = schemas.checked(key_schema, _content(flags.key_value_key_file))
            elif (text := flags.key_value_key if flags.key_value_key is not None else flags.key) is not None:
                self._key = schemas.encoded(key_schema, text)
        elif flags.key_value_key is not None or flags.key_value_key_file is not None:
            raise CannotEncode("a key of a key and value schema needs --key-value-encoding-type as well")
        self._has_key_value = flags.key_value_encoding is not None

    def of_text(self, text: str) -> Body:
        return self._body(schemas.encoded(self._value, text))

    def of_bytes(self, payload: bytes) -> Body:
        return self._body(schemas.checked(self._value, payload))

    def _body(self, payload: bytes) -> Body:
        if not self._has_key_value:
            return Body(payload, self._key_text)
        if self._is_separated:
            key = None if self._key is None else base64.b64encode(self._key).decode()
            return Body(payload, key, is_key_base64=key is not None)
        return Body(schemas.inline(self._key, payload), self._key_text)


def split_key(line: bytes, separator: str | None) -> tuple[str | None, bytes]:
    """The key that stands before the separator, and the rest. Raises `ClientError` if there is none."""
    if not separator:
        return None, line
    key, found, rest = line.partition(separator.encode())
    if not found:
        shown = line[:40].decode(errors="backslashreplace")
        raise ClientError(f"a line has no key: {shown!r} without {separator!r}")
    return key.decode(errors="backslashreplace"), rest


def texts(flags: argparse.Namespace) -> list[str]:
    """The messages that were given as texts."""
    if flags.separator is None:
        return list(flags.message)
    return [part for message in flags.message for part in _split(message, flags.separator)]


def _split(message: str, separator: str) -> list[str]:
    """As Java's `split` does: without empty parts at the end."""
    parts = message.split(separator) if separator else [message]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def files(flags: argparse.Namespace) -> Iterator[bytes]:
    """The content of each file; one flag may name several, separated by commas."""
    for given in flags.file:
        for name in [given] if os.path.exists(given) else given.split(","):
            yield _content(name)


def _definition(given: str) -> str:
    """A schema as it was given, with the content of the file that it names."""
    kind, _, name = given.partition(":@")
    return f"{kind}:{_content(name).decode(errors='replace')}" if name else given


def _content(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ClientError(f"{name}: {error.strerror}") from None


def properties(given: list[str]) -> dict[str, str]:
    """`a=b`, or several separated by commas if each of them has its `=`."""
    found: dict[str, str] = {}
    for text in given:
        parts = text.split(",")
        for part in parts if all("=" in part for part in parts) else [text]:
            name, _, value = part.partition("=")
            found[name] = value
    return found
