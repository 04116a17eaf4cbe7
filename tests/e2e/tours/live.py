"""The published admin client itself, led through a running broker: does each call end as on the real one?

    python -m tests.e2e.tours.live java pulsar://localhost:6650 http://localhost:8080

prints every call whose outcome is not the recorded one. It takes Java or Go and their published clients; the
broker must not have seen the tour yet.
"""

from __future__ import annotations

import sys

from tests.e2e.tours.compare import outcome_difference
from tests.e2e.tours.recorder import recorded, without_bulk
from tests.e2e.tours.test_e2e_tours import explained
from tests.e2e.tours.tour import lead


def main() -> None:
    client, service_url, web_url = sys.argv[1:4]
    theirs, ours = recorded(client), lead(client, service_url, web_url)
    assert list(theirs) == list(ours), theirs.keys() ^ ours.keys()
    reasons = explained()
    for name, call in theirs.items():
        if what := outcome_difference(name, call.outcome, without_bulk(ours[name]).outcome):
            mark = "explained" if any(row.explains(client, name) for row in reasons) else "DIFFERS"
            print(mark, name, what, sep="\t")
    print(f"{len(theirs)} calls")


if __name__ == "__main__":
    main()
