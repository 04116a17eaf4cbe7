"""docs/metrics.md, made from a page of metrics.

python -m tests.e2e.metrics.document PAGE.txt          prints the page of the documentation
"""

from __future__ import annotations

import sys
from pathlib import Path

HEAD = Path(__file__).with_name("document_head.txt")
GROUPS = (
    ("Topics, subscriptions and clients", ("pulsar_",)),
    ("Bookie", ("bookie_", "bookkeeper_")),
    ("Geminga's own", ("geminga_",)),
    ("Process, and names that only dashboards need", ("",)),
)


def rows_of(page: str) -> dict[str, tuple[str, str, str]]:
    """Of each family: type, labels, text."""
    found: dict[str, tuple[str, str, str]] = {}
    labels: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    texts: dict[str, str] = {}
    current = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, current, texts_of = line.split(" ", 3)
            texts[current] = texts_of
            labels[current] = set()
        elif line.startswith("# TYPE "):
            kinds[current] = line.rsplit(" ", 1)[1]
        elif "{" in line:
            inside = line[line.index("{") + 1 : line.rindex("}")]
            labels[current] |= {pair.partition("=")[0] for pair in _pairs(inside)}
    for name, text in texts.items():
        found[name] = (kinds[name], ", ".join(sorted(labels[name])), text)
    return found


def _pairs(inside: str) -> list[str]:
    return [pair for pair in inside.replace('",', '"\n').split("\n") if pair]


def document_of(page: str) -> str:
    rows, parts = rows_of(page), [HEAD.read_text()]
    for title, prefixes in GROUPS:
        parts.append(f"## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
        for name in sorted(name for name in rows if name.startswith(prefixes)):
            kind, labels, text = rows.pop(name)
            parts.append(f"| `{name}` | {kind} | {labels} | {text} |\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(document_of(Path(sys.argv[1]).read_text()), end="")
