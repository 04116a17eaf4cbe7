"""`geminga resource-quotas`: what bundles are expected to need. Stored and shown, without effect here."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.verbs.rows.running import ask, run_group
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, switch

QUOTAS = "resource-quotas"
BUNDLE = (
    flag("--namespace", "-n", dest="of_namespace", help="tenant/namespace, with --bundle"),
    flag("--bundle", "-b", help="0x00000000_0x40000000, with --namespace"),
)
FIELDS = ("msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut", "memory", "dynamic")


def _at(method: str, *, body: bool = False, needs_bundle: bool = False) -> Verb:
    """Of a bundle, or the default of all bundles."""

    def run(admin: Admin, flags: Flags) -> Any:
        if bool(flags.of_namespace) is not bool(flags.bundle) or (needs_bundle and not flags.bundle):
            raise RequestFailed("--namespace and --bundle belong together")
        path = QUOTAS
        if flags.bundle:
            tenant, _, namespace = flags.of_namespace.partition("/")
            path += f"/{tenant}/{namespace}/{{bundle}}"
        given = {name: name for name in FIELDS} if body else None
        return ask(admin, Verb("", method, path, body=given), flags)

    return Verb("", method, QUOTAS, run=run)


VERBS = {
    "get": _at("GET")._replace(text="show what a bundle may use, or the default", flags=BUNDLE),
    "set": _at("POST", body=True)._replace(
        text="set what a bundle may use, or the default",
        flags=(
            *BUNDLE,
            flag("--msgRateIn", "-mi", type=float, default=0, help="messages in a second"),
            flag("--msgRateOut", "-mo", type=float, default=0, help="messages out a second"),
            flag("--bandwidthIn", "-bi", type=float, default=0, help="bytes in a second"),
            flag("--bandwidthOut", "-bo", type=float, default=0, help="bytes out a second"),
            flag("--memory", "-mem", type=float, default=0, help="MiB"),
            switch("--dynamic", "-d", help="may be calculated again"),
        ),
    ),
    "reset-namespace-bundle-quota": _at("DELETE", needs_bundle=True)._replace(
        text="go back to the default", flags=BUNDLE
    ),
}
run = partial(run_group, "resource-quotas", VERBS)
