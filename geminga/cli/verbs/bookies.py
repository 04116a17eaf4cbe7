"""`geminga bookies`: bookies and their racks. Racks are stored and shown, without effect here."""

from __future__ import annotations

from functools import partial

from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.verb import Verb, flag

RACK = "bookies/racks-info/{bookie}"
BOOKIE = flag("--bookie", "-b", required=True, help="host:port of the bookie")
VERBS = {
    "list-bookies": Verb("list bookies", "GET", "bookies/all"),
    "racks-placement": Verb("show the racks of all bookies", "GET", "bookies/racks-info"),
    "get-bookie-rack": Verb("show the rack of a bookie", "GET", RACK, (BOOKIE,)),
    "set-bookie-rack": Verb(
        "set the rack of a bookie",
        "POST",
        RACK,
        (
            BOOKIE,
            flag("--group", "-g", dest="of_group", default="default", help="its group (default: default)"),
            flag("--rack", "-r", required=True, help="its rack"),
            flag("--hostname", "-hn", help="its host"),
        ),
        {"group": "of_group"},
        {"rack": "rack", "hostname": "hostname"},
    ),
    "delete-bookie-rack": Verb("forget the rack of a bookie", "DELETE", RACK, (BOOKIE,)),
}
run = partial(run_group, "bookies", VERBS)
