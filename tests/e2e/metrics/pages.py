"""Pages of metrics as data: families, and samples by what their labels say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.metrics.workload import PREFIX

Labels = frozenset[tuple[str, str]]


class Page(NamedTuple):
    kinds: Mapping[str, str]
    """Of each family that has a TYPE; `unknown` for samples without one."""
    helps: Mapping[str, str]
    samples: Mapping[str, Mapping[Labels, float]]
    """By the name of the sample."""

    def value(self, name: str, **labels: str) -> float:
        """Of the only sample that has at least these labels; a topic is named as in the workload."""
        if "topic" in labels:
            labels["topic"] = f"{PREFIX}/{labels['topic']}"
        found = [
            value for of, value in self.samples.get(name, {}).items() if labels.items() <= dict(of).items()
        ]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]

    def total(self, name: str, **labels: str) -> float:
        """Of all samples that have these labels; 0 if there is none."""
        if "topic" in labels:
            labels["topic"] = f"{PREFIX}/{labels['topic']}"
        return sum(
            value for of, value in self.samples.get(name, {}).items() if labels.items() <= dict(of).items()
        )

    def label_names(self, name: str) -> set[frozenset[str]]:
        return {frozenset(key for key, _ in labels) for labels in self.samples.get(name, {})}


def median_of(pages: Sequence[Page]) -> Page:
    """The last one, with the median of each sample over all that have it."""
    *_, last = pages
    all_samples = [page.samples for page in pages]
    samples = {
        name: {
            labels: median(each[name][labels] for each in all_samples if labels in each.get(name, {}))
            for labels in of
        }
        for name, of in last.samples.items()
    }
    return Page(last.kinds, last.helps, samples)


def page_of(text: str) -> Page:
    kinds: dict[str, str] = {}
    helps: dict[str, str] = {}
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        kinds.setdefault(family.name, family.type)
        helps.setdefault(family.name, family.documentation)
        for sample in family.samples:
            samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return Page(kinds, helps, samples)


def declared(text: str) -> dict[str, str]:
    """The types as they stand there: the parser changes names of counters."""
    return {
        parts[2]: parts[3]
        for parts in (line.split(" ", 3) for line in text.splitlines())
        if parts[:2] == ["#", "TYPE"]
    }


def near(found: float, expected: float, share: float) -> bool:
    return abs(found - expected) <= share * max(abs(found), abs(expected))
