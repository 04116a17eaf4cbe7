"""How much of what works on a real broker works here: counted, with what fails.

    python -m tests.e2e.differential.count [pulsar://... http://...]

plays all cases against a broker of its own, or a running one that has just been started, and prints two
counts. The first: of the (method, path) pairs of the real broker's admin API that were answered with success
there, less those that need what this broker does not have, how many are here. The second: the same of the
pairs that client suites send (`client_requests.tsv`). A pair works if each request that succeeded there
succeeds here. The exit code is 1 below `SHARE_MIN`, and for a pair of the clients that should work and fails.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.differential.cases import cases
from tests.e2e.differential.play import Asked, Player
from tests.e2e.differential.recorder import recorded

CLIENT_REQUESTS = Path(__file__).with_name("client_requests.tsv")
SHARE_MIN = 0.95
LEFT_OUT = {
    "non-persistent topics": ("/non-persistent/",),
    "transactions": ("/transactions/",),
    "compaction": ("/compaction",),
}
"""What this broker does not have, and the parts of a path that need it: `/compactionThreshold` does not."""
Pair = tuple[str, str]


class Fate(NamedTuple):
    """How the requests of one pair ended."""

    succeeded: int
    """On the real broker."""
    failed: tuple[str, ...]
    """In a few words each, those of them that do not succeed here."""
    unlike: tuple[str, ...]
    """Those with another status than there, or an error of this broker where that one has one."""


def fates(there: Mapping[str, Sequence[Asked]], here: Mapping[str, Sequence[Asked]]) -> dict[Pair, Fate]:
    """Of every pair that is asked."""
    asked: dict[Pair, list[tuple[Asked, Asked]]] = defaultdict(list)
    for path, steps in there.items():
        for theirs, ours in zip(steps, here[path], strict=True):
            asked[theirs.method, path].append((theirs, ours))
    return {pair: _fate(both) for pair, both in asked.items()}


def _fate(asked: Sequence[tuple[Asked, Asked]]) -> Fate:
    def told(theirs: Asked, ours: Asked) -> str:
        return f"{theirs.status} there, {ours.status} here: {theirs.path} {theirs.body}"

    succeeded = [(theirs, ours) for theirs, ours in asked if theirs.status // 100 == 2]
    return Fate(
        len(succeeded),
        tuple(told(theirs, ours) for theirs, ours in succeeded if ours.status // 100 != 2),
        tuple(
            told(theirs, ours)
            for theirs, ours in asked
            if (ours.status >= 500 if theirs.status >= 500 else theirs.status != ours.status)
        ),
    )


def left_out(path: str) -> str | None:
    """Why a path is not counted."""
    for reason, parts in LEFT_OUT.items():
        if any(f"{part}/".replace("//", "/") in f"{path}/" for part in parts):
            return reason
    return None


def client_pairs() -> list[Pair]:
    lines = CLIENT_REQUESTS.read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [(row[0], row[1]) for row in rows]


def route_of(pair: Pair, of: Iterable[Pair]) -> Pair | None:
    """The route among `of` that a client's request is for: the one with the most literal parts."""

    def literals(route: Pair) -> int:
        return sum(not part.startswith("{") for part in route[1].split("/"))

    fitting = [route for route in of if route[0] == pair[0] and _fits(pair[1], route[1])]
    return max(fitting, key=literals, default=None)


def _fits(asked: str, route: str) -> bool:
    parts, pattern = asked.split("/"), route.split("/")
    return len(parts) == len(pattern) and all(
        one == other or other.startswith("{") for one, other in zip(parts, pattern, strict=True)
    )


def main() -> int:
    if len(sys.argv) > 2:
        with Player(*sys.argv[1:3]) as player:
            return report(player)
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(Path(directory) / "data") as process,
        Player(process.endpoints.service_url, process.endpoints.web_url) as player,
    ):
        return report(player)


def report(player: Player) -> int:
    found = fates(recorded(), {path: player.play(path, steps) for path, steps in cases().items()})
    working = {pair for pair, fate in found.items() if fate.succeeded}
    counted = [pair for pair in found if pair in working and left_out(pair[1]) is None]
    failing = [pair for pair in counted if found[pair].failed]
    share = 1 - len(failing) / len(counted)
    print(f"{len(working)} pairs succeed on the real broker")
    for reason in LEFT_OUT:
        print(f"  {sum(left_out(path) == reason for _, path in working)} need {reason}: not counted")
    print(f"of {len(counted)} pairs {len(counted) - len(failing)} work here: {share:.1%}")
    for pair in failing:
        fate = found[pair]
        print(f"  {' '.join(pair)}: {len(fate.failed)} of {fate.succeeded} fail, first {fate.failed[0]}")
    return 0 if _report_of_clients(found) and share >= SHARE_MIN else 1


def _report_of_clients(found: Mapping[Pair, Fate]) -> bool:
    """False if a pair fails that should work."""
    asked = client_pairs()
    counted = [pair for pair in asked if left_out(pair[1]) is None]
    print(f"{len(asked)} pairs are sent by client suites")
    for reason in LEFT_OUT:
        print(f"  {sum(left_out(path) == reason for _, path in asked)} need {reason}: not counted")
    failing, absent = [], 0
    for pair in counted:
        route = route_of(pair, found)
        if route is None:
            absent += 1
            continue
        fate = found[route]
        # Without a success there, only the answer's status can be compared.
        if complaints := fate.failed if fate.succeeded else fate.unlike:
            failing.append(f"{' '.join(pair)}: {complaints[0]}")
    print(f"  {absent} the real broker has no route for: not counted")
    print(f"of {len(counted) - absent} pairs {len(counted) - absent - len(failing)} work here")
    for line in failing:
        print(f"  {line}")
    return not failing


if __name__ == "__main__":
    sys.exit(main())
