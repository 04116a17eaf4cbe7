"""The names that a client's pattern matches, by the rules of Pulsar's broker.

The pattern is matched against the whole of `tenant/namespace/topic`, without the domain and without the
suffix of a partition. So a partitioned topic matches with all of its partitions or with none.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from geminga.errors import InvalidPattern
from geminga.limits import KIB
from geminga.names import PARTITION_SUFFIX, TopicName

if TYPE_CHECKING:
    import re2

    from geminga.broker.flow.client_metadata import ClientMetadata

PROGRAM_BYTES_MAX = 32 * KIB
"""The memory limit of a compiled pattern and its state; larger patterns are left to the client. RE2 gives up
the largest ones after about 0.3 ms; with 1 MiB it compiled 24 characters for 27 ms.
"""
PROGRAM_BYTES = 4 * KIB
"""The memory of a compiled pattern without its instructions, about."""
INSTRUCTION_BYTES = 12
RECENT_MAX = 16
"""Patterns that are kept for further requests, used or not: at most 300 KiB."""
_SEPARATOR = "://"
_DOMAINS = ("non-persistent", "persistent")
_MALFORMED = (b"missing ", b"unexpected ", b"no argument for repetition operator", b"trailing \\")
"""RE2's errors for patterns that no client can apply either. All other errors name features that RE2 lacks:
lookahead, back references, possessive operators, counts above 1,000.
"""


def subject(name: str) -> str:
    """The part of a full topic name that patterns are matched against; the same for all partitions of a
    topic.
    """
    # To parse each name took half of the time of a list of 10,000.
    if PARTITION_SUFFIX in name:
        name = str(TopicName.parse(name).partitioned_name)
    return name.partition(_SEPARATOR)[2]


class TopicsPattern:
    """A compiled pattern."""

    __slots__ = ("__weakref__", "_regex")

    def __init__(self, regex: re2._Regexp[str]) -> None:
        self._regex = regex

    def matches(self, name: str) -> bool:
        """Whether `name`, a full topic name, matches; for a partition, whether its partitioned
        topic does.
        """
        return self.matches_subject(subject(name))

    def matches_subject(self, text: str) -> bool:
        """As `matches` of a name whose `subject` is `text`. Takes up to 0.03 ms."""
        return self._regex.fullmatch(text) is not None

    def select(self, names: Sequence[str]) -> Iterator[str]:
        """The names that match, in their order. Partitions that follow each other are looked at once."""
        for text, some in groupby(names, subject):
            if self.matches_subject(text):
                yield from some

    @property
    def bytes(self) -> int:
        """The memory that it takes, about."""
        return PROGRAM_BYTES + int(self._regex.programsize) * INSTRUCTION_BYTES


class TopicsPatterns:
    """One per broker: one compiled pattern for each text, shared by all its uses, and counted in the
    clients' part of the memory until the last of them ends.
    """

    def __init__(self, memory: ClientMetadata) -> None:
        self._memory = memory
        self._used: weakref.WeakValueDictionary[str, TopicsPattern] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, TopicsPattern | None] = OrderedDict()

    def get(self, text: str) -> TopicsPattern | None:
        """The pattern; None if its client has to apply it: RE2 cannot, or there is no memory for it. Takes
        up to 0.5 ms. Raises `InvalidPattern` if it is malformed.
        """
        if text in self._recent:
            self._recent.move_to_end(text)
            return self._recent[text]
        pattern = self._used.get(text)
        if pattern is None:
            pattern = compiled(text)
            if pattern is not None:
                if not self._has_room(pattern.bytes):
                    return None
                self._used[text] = pattern
                weakref.finalize(pattern, self._memory.give, pattern.bytes)
        self._recent[text] = pattern
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        return pattern

    def _has_room(self, size_bytes: int) -> bool:
        if not self._memory.try_take(size_bytes):
            # Those that are not in use go before a client has to do without.
            self._recent.clear()
            return self._memory.try_take(size_bytes)
        return True


def compiled(text: str) -> TopicsPattern | None:
    """The pattern; None if RE2 cannot apply it. Raises `InvalidPattern` if it is malformed."""
    import re2

    try:
        regex = re2.compile(without_domain(text), _options())
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        if reason.startswith(_MALFORMED):
            raise InvalidPattern(f"Invalid topics pattern: {reason.decode(errors='replace')}") from None
        return None
    # Otherwise the binding keeps the last 128 itself, in no one's part of the memory.
    re2.purge()
    return TopicsPattern(regex)


def without_domain(text: str) -> str:
    """The pattern without `persistent://`, which may follow an opening bracket.

    Raises `InvalidPattern` for another domain and for a pattern that ends with the separator.
    """
    before, separator, after = text.partition(_SEPARATOR)
    if not separator:
        return text
    for domain in _DOMAINS:
        if before.endswith(domain):
            if not after:
                break
            return before.removesuffix(domain) + after
    raise InvalidPattern(
        f"Does not support topic domain: {before}; a pattern begins with persistent://tenant/namespace/"
    )


@cache
def _options() -> re2.Options:
    import re2

    options = re2.Options()
    # Otherwise RE2 writes each refused pattern to standard error, past the broker's log.
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    return options
