"""`geminga resourcegroups`: rates of groups of namespaces. Stored and shown, without effect here."""

from __future__ import annotations

from functools import partial

from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.verb import Verb, flag

GROUP = "resourcegroups/{group}"
RATES = (
    flag("--msg-publish-rate", "-mp", type=int, help="messages published a second; -1: no limit"),
    flag("--byte-publish-rate", "-bp", type=int, help="bytes published a second; -1: no limit"),
    flag("--msg-dispatch-rate", "-md", type=int, help="messages delivered a second; -1: no limit"),
    flag("--byte-dispatch-rate", "-bd", type=int, help="bytes delivered a second; -1: no limit"),
)
BODY = {
    "publishRateInMsgs": "msg_publish_rate",
    "publishRateInBytes": "byte_publish_rate",
    "dispatchRateInMsgs": "msg_dispatch_rate",
    "dispatchRateInBytes": "byte_dispatch_rate",
}
VERBS = {
    "list": Verb("list resource groups", "GET", "resourcegroups"),
    "get": Verb("show the rates of a group", "GET", GROUP),
    "create": Verb("create a group", "PUT", GROUP, RATES, body=BODY),
    "update": Verb("change the rates of a group", "PUT", GROUP, RATES, body=BODY),
    "delete": Verb("delete a group", "DELETE", GROUP),
}
run = partial(run_group, "resourcegroups", VERBS)
