"""Parses and checks topic, namespace, tenant and subscription names; no other module does.

The rules are Pulsar's (its `TopicName`, `NamespaceName` and `NamedEntity`), with two restrictions: names of
the first generation with a cluster in them (`tenant/cluster/namespace/topic`) are refused, and a name has at
most `NAME_BYTES_MAX` bytes of UTF-8. A local name may contain almost anything, including `..`, spaces and
NUL, so it is always encoded before it becomes a path on disk.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, final, overload
from urllib.parse import quote, unquote

from geminga.errors import InvalidName
from geminga.limits import NAME_BYTES_MAX

PUBLIC_TENANT = "public"
DEFAULT_NAMESPACE = "default"
PARTITION_SUFFIX = "-partition-"
PARTITION_INDEX_MAX = 2**31 - 1
PARSED_NAMES_MAX = 4096
"""How many parsed topic names are remembered; lookups and producers repeat names again and again."""
REMEMBERED_LENGTH_MAX = 256
"""Longer names are parsed each time, so that a peer cannot fill memory with remembered names."""

_NAMED_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
# What Java's Character.isWhitespace holds to be blank: unlike str.isspace() not U+0085, U+00A0, U+2007,
# U+202F.
_BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a"
    "\u2028\u2029\u205f\u3000"
)


class TopicDomain(enum.StrEnum):
    """Whether a topic's messages are stored."""

    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


_DOMAINS = {domain.value: domain for domain in TopicDomain}


def encode_name(name: str) -> str:
    """The name as one component of a path: percent-encoded, no slash, ASCII only. `decode_name` reverses
    this.
    """
    return quote(name, safe="")


def decode_name(encoded: str) -> str:
    return unquote(encoded, errors="strict")


def check_tenant(name: str) -> str:
    """The name itself. Raises InvalidName unless it is one or more of ASCII letters, digits and `_-=:.`"""
    _check_size(name, "tenant")
    if _NAMED_ENTITY.fullmatch(name) is None:
        raise InvalidName(f"invalid tenant name {_shown(name)}: allowed are ASCII letters, digits and _-=:.")
    return name


def check_subscription(name: str) -> str:
    """The name itself. Raises InvalidName if it is blank or too long; any other text is fine."""
    _check_size(name, "subscription")
    if not name.strip(_BLANKS):
        raise InvalidName("empty subscription name")
    return name


def check_producer_name(name: str) -> str:
    """The name itself. Raises InvalidName if it is too long: deduplication keeps many of them."""
    _check_size(name, "producer")
    return name


@final
class NamespaceName:
    """A namespace, `tenant/namespace`. Immutable, compares and hashes by its text."""

    __slots__ = ("_text", "local", "tenant")

    def __init__(self, tenant: str, local: str) -> None:
        check_tenant(tenant)
        _check_size(local, "namespace")
        if _NAMED_ENTITY.fullmatch(local) is None:
            raise InvalidName(
                f"invalid namespace name {_shown(local)}: allowed are ASCII letters, digits and _-=:."
            )
        self.tenant: Final = tenant
        self.local: Final = local
        self._text: Final = f"{tenant}/{local}"

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """From `tenant/namespace`. Raises InvalidName for any other text."""
        parts = text.split("/", 3)
        if len(parts) == 3:
            raise InvalidName(
                f"namespace {_shown(text)} names a cluster (tenant/cluster/namespace), a form that is not "
                "supported: use tenant/namespace"
            )
        if len(parts) != 2 or not all(parts):
            raise InvalidName(f"invalid namespace {_shown(text)}: expected tenant/namespace")
        return cls(parts[0], parts[1])

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"NamespaceName({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NamespaceName) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)


@final
class TopicName:
    """A topic's full name, `domain://tenant/namespace/local`. Immutable, compares and hashes by its text.

    `partition_index` is N of a local name that ends in `-partition-N` (decimal, no leading zero), else -1.
    """

    __slots__ = ("_text", "domain", "local", "namespace", "partition_index")

    def __init__(self, domain: TopicDomain, namespace: NamespaceName, local: str) -> None:
        """Raises InvalidName if `local` is blank, holds a slash, or is too long."""
        text = f"{domain.value}://{namespace}/{local}"
        _check_size(text, "topic")
        if not local.strip(_BLANKS):
            raise InvalidName(f"invalid topic name {_shown(text)}: the local name must not be blank")
        if "/" in local:
            raise InvalidName(
                f"topic name {_shown(text)} has a fourth part, as in tenant/cluster/namespace/topic, which "
                "is not supported: use tenant/namespace/topic without further slashes"
            )
        self.domain: Final = domain
        self.namespace: Final = namespace
        self.local: Final = local
        self.partition_index: Final = _partition_index(local)
        self._text: Final = text

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """From `domain://tenant/namespace/local`, `tenant/namespace/local` or `local` (in public/default).

        Raises InvalidName. Recent results are shared: parsing the same text again is a dictionary look-up.
        """
        return _parse_remembered(text) if len(text) <= REMEMBERED_LENGTH_MAX else _parse_topic(text)

    @property
    def tenant(self) -> str:
        return self.namespace.tenant

    @property
    def is_persistent(self) -> bool:
        return self.domain is TopicDomain.PERSISTENT

    @property
    def is_partition(self) -> bool:
        return self.partition_index >= 0

    @property
    def partitioned_name(self) -> TopicName:
        """The partitioned topic of this partition; the topic itself if it is no partition."""
        if self.partition_index < 0:
            return self
        local = self.local[: self.local.rindex(PARTITION_SUFFIX)]
        return TopicName(self.domain, self.namespace, local)

    def partition(self, index: int) -> TopicName:
        """The name of partition `index` of this topic; itself if it already is that partition."""
        assert 0 <= index <= PARTITION_INDEX_MAX
        if index == self.partition_index:
            return self
        return TopicName(self.domain, self.namespace, f"{self.local}{PARTITION_SUFFIX}{index}")

    @property
    def path(self) -> str:
        """`tenant/namespace/domain/local` with each part percent-encoded: the tail of metadata paths."""
        namespace = self.namespace
        return (
            f"{encode_name(namespace.tenant)}/{encode_name(namespace.local)}"
            f"/{self.domain.value}/{encode_name(self.local)}"
        )

    @classmethod
    def from_path(cls, path: str) -> TopicName:
        """The inverse of `path`."""
        parts = path.split("/")
        if len(parts) != 4 or parts[2] not in _DOMAINS:
            raise InvalidName(f"not the path of a topic: {_shown(path)}")
        tenant, namespace, local = (decode_name(parts[index]) for index in (0, 1, 3))
        return cls(_DOMAINS[parts[2]], _namespace(tenant, namespace), local)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"TopicName({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TopicName) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)


class Partitions(Sequence[TopicName]):
    """The names of all partitions of a topic, each made when it is asked for: ten thousand take 0.1 s."""

    def __init__(self, topic: TopicName, count: int) -> None:
        self._topic = topic
        self._indices = range(count)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, place: int) -> TopicName: ...
    @overload
    def __getitem__(self, place: slice) -> list[TopicName]: ...
    def __getitem__(self, place: int | slice) -> TopicName | list[TopicName]:
        if isinstance(place, slice):
            return [self._topic.partition(index) for index in self._indices[place]]
        return self._topic.partition(self._indices[place])


def _parse_topic(text: str) -> TopicName:
    _check_size(text, "topic")
    scheme, separator, rest = text.partition("://")
    if separator:
        domain = _DOMAINS.get(scheme.lower())
        if domain is None:
            raise InvalidName(f"invalid topic domain {_shown(scheme)}: expected persistent or non-persistent")
        parts = rest.split("/", 2)
    else:
        domain = TopicDomain.PERSISTENT
        parts = text.split("/", 3)
        if len(parts) == 1 and text:
            parts = [PUBLIC_TENANT, DEFAULT_NAMESPACE, text]
        elif len(parts) != 3:
            raise InvalidName(
                f"invalid short topic name {_shown(text)}: expected tenant/namespace/topic or topic"
            )
    if len(parts) != 3:
        raise InvalidName(f"invalid topic name {_shown(text)}: expected domain://tenant/namespace/topic")
    return TopicName(domain, _namespace(parts[0], parts[1]), parts[2])


_parse_remembered = lru_cache(maxsize=PARSED_NAMES_MAX)(_parse_topic)
_namespace_remembered = lru_cache(maxsize=PARSED_NAMES_MAX)(NamespaceName)


def _namespace(tenant: str, local: str) -> NamespaceName:
    """The shared object for all topics of a namespace."""
    is_short = len(tenant) + len(local) <= REMEMBERED_LENGTH_MAX
    return _namespace_remembered(tenant, local) if is_short else NamespaceName(tenant, local)


def _partition_index(local: str) -> int:
    start = local.rfind(PARTITION_SUFFIX)
    if start <= 0 or not local[:start].strip(_BLANKS):
        return -1
    digits = local[start + len(PARTITION_SUFFIX) :]
    if _PARTITION.fullmatch(digits) is None or (index := int(digits)) > PARTITION_INDEX_MAX:
        return -1
    return index


def _check_size(name: str, what: str) -> None:
    try:
        size_bytes = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{what} name {_shown(name)} is not valid Unicode text") from None
    if size_bytes > NAME_BYTES_MAX:
        raise InvalidName(
            f"{what} name of {size_bytes} bytes is longer than {NAME_BYTES_MAX}: {_shown(name)}"
        )


def _shown(name: str) -> str:
    """The text for an error: quoted, control characters escaped, at most a line long."""
    return ascii(name) if len(name) <= 100 else ascii(name[:100]) + "..."
