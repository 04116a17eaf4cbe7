"""What was asked for and is not served, counted: so that an operator sees what a tool would need. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

KINDS_MAX: Final = 256
TEXT_MAX: Final = 200
_OBJECTS: Final = {
    "persistent": ("{tenant}", "{namespace}", "{topic}"),
    "non-persistent": ("{tenant}", "{namespace}", "{topic}"),
    "schemas": ("{tenant}", "{namespace}", "{topic}"),
    "namespaces": ("{tenant}", "{namespace}"),
    "tenants": ("{tenant}",),
    "clusters": ("{cluster}",),
    "functions": ("{tenant}", "{namespace}", "{function}"),
    "sinks": ("{tenant}", "{namespace}", "{sink}"),
    "sources": ("{tenant}", "{namespace}", "{source}"),
}
"""Names that stand behind a kind of object in a path of Pulsar's."""


class Asked(NamedTuple):
    method: str
    path: str
    status: int
    """It was answered with."""


class Unserved:
    """Counts by method and path, with the names of objects left out; the first `KINDS_MAX` kinds are kept."""

    def __init__(self) -> None:
        self._counts: dict[Asked, int] = {}
        self.others = 0
        """Requests of kinds that found no room."""

    def count(self, method: str, segments: list[str], status: int) -> None:
        asked = Asked(method[:TEXT_MAX], _pattern(segments), status)
        if asked in self._counts or len(self._counts) < KINDS_MAX:
            self._counts[asked] = self._counts.get(asked, 0) + 1
        else:
            self.others += 1

    def rows(self) -> list[dict[str, object]]:
        """The most frequent first."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return [{**asked._asdict(), "count": count} for asked, count in ordered]


def _pattern(segments: list[str]) -> str:
    shown = list(segments)
    for index, segment in enumerate(segments[:4]):
        if segment in _OBJECTS:
            for place, name in enumerate(_OBJECTS[segment], index + 1):
                if place < len(shown):
                    shown[place] = name
            break
    return "/" + "/".join(shown)[:TEXT_MAX]
