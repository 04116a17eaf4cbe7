"""Every path of the real broker's admin API, asked here with the same set-up: the same status and fields.

`differences.tsv` lists what differs on purpose or does not exist here: the method, the path (`*` stands
for anything), the reason. A row that explains nothing any more fails too.

    python -m tests.e2e.differential.test_e2e_differential pulsar://... http://... [PATH...]

prints the differences of a running broker.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.differential.cases import NOT_ASKED, cases, pairs
from tests.e2e.differential.compare import difference
from tests.e2e.differential.play import Asked, Player
from tests.e2e.differential.recorder import recorded

DIFFERENCES = Path(__file__).with_name("differences.tsv")


class Explained(NamedTuple):
    method: str
    path: str
    reason: str

    def explains(self, method: str, path: str) -> bool:
        return fnmatch.fnmatchcase(method, self.method) and fnmatch.fnmatchcase(path, _literal(self.path))


class Difference(NamedTuple):
    method: str
    path: str
    body: str | None
    what: str


def _literal(pattern: str) -> str:
    """fnmatch knows no braces, but brackets and question marks."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def explained() -> list[Explained]:
    lines = DIFFERENCES.read_text().splitlines()
    return [Explained(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def differences(service_url: str, web_url: str, paths: Iterable[str]) -> Iterator[Difference]:
    asked, theirs = cases(), recorded()
    with Player(service_url, web_url) as player:
        for path in paths:
            for there, here in zip(theirs[path], player.play(path, asked[path]), strict=True):
                if what := difference(there, here):
                    yield Difference(there.method, there.path, there.body, what)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Difference]:
    """On a broker of their own: the cases leave clusters, resource groups and quotas behind."""
    with BrokerProcess(tmp_path_factory.mktemp("differential") / "data") as process:
        return list(differences(process.endpoints.service_url, process.endpoints.web_url, cases()))


def kind_of(path: str) -> str:
    """The kind of object that a path is about: `/admin/v2/namespaces`."""
    return "/".join(path.split("/")[:4])


@pytest.mark.geminga_only
@pytest.mark.parametrize("kind", sorted({kind_of(path) for path in cases()}))
def test_every_route_of_the_real_broker_answers_alike_or_is_explained(
    found: list[Difference], kind: str
) -> None:
    reasons = explained()
    assert [
        one
        for one in found
        if kind_of(one.path) == kind and not any(row.explains(one.method, one.path) for row in reasons)
    ] == []


@pytest.mark.geminga_only
def test_every_reason_explains_something(found: list[Difference]) -> None:
    assert [row for row in explained() if not any(row.explains(one.method, one.path) for one in found)] == []


def test_every_method_and_path_of_the_real_broker_is_asked() -> None:
    asked = {(step.method, path) for path, steps in cases().items() for step in steps}
    assert pairs() - asked - NOT_ASKED.keys() == set()


def test_the_recording_is_of_these_cases() -> None:
    asked = {path: [(step.method, step.path, step.body) for step in steps] for path, steps in cases().items()}
    answered = {path: [_question(step) for step in steps] for path, steps in recorded().items()}
    assert answered == asked


def _question(step: Asked) -> tuple[str, str, str | None]:
    return step.method, step.path, step.body


def main() -> None:
    beginnings = tuple(sys.argv[3:] or [""])
    reasons = explained()
    for one in differences(*sys.argv[1:3], [path for path in cases() if path.startswith(beginnings)]):
        mark = "explained" if any(row.explains(one.method, one.path) for row in reasons) else "DIFFERS"
        print(mark, one.method, one.path, one.body, "|", one.what, sep="\t")


if __name__ == "__main__":
    main()
