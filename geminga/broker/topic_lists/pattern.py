"""The names that a client's pattern matches, by the rules of Pulsar's broker. Pure.

The pattern is matched against the whole of `tenant/namespace/topic`, without the domain and without the
suffix of a partition. So a partitioned topic matches with all of its partitions or with none.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from geminga.errors import InvalidPattern
from geminga.names import TopicName

if TYPE_CHECKING:
    import re2

PROGRAM_BYTES_MAX = 1024 * 1024
"""The memory limit of a compiled pattern and its state; larger patterns are left to the client."""
_SEPARATOR = "://"
_DOMAINS = ("non-persistent", "persistent")
_MALFORMED = (b"missing ", b"unexpected ", b"no argument for repetition operator", b"trailing \\")
"""RE2's errors for patterns that no client can apply either. All other errors name features that RE2 lacks:
lookahead, back references, possessive operators, counts above 1,000.
"""


class TopicsPattern:
    """A compiled pattern."""

    __slots__ = ("_regex",)

    def __init__(self, regex: re2._Regexp[str]) -> None:
        self._regex = regex

    def matches(self, name: str) -> bool:
        """Whether `name`, a full topic name, matches; for a partition, whether its partitioned
        topic does.
        """
        partitioned = str(TopicName.parse(name).partitioned_name)
        return self._regex.fullmatch(partitioned.partition(_SEPARATOR)[2]) is not None


def compiled(text: str) -> TopicsPattern | None:
    """The pattern; None if RE2 cannot apply it. Raises `InvalidPattern` if it is malformed."""
    import re2

    try:
        return TopicsPattern(re2.compile(without_domain(text), _options()))
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        if reason.startswith(_MALFORMED):
            raise InvalidPattern(f"Invalid topics pattern: {reason.decode(errors='replace')}") from None
        return None


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
