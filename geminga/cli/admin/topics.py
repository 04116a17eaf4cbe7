"""`geminga topics`: topics and their subscriptions, with pulsar-admin's verbs and flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from geminga.cli.admin.admin_http import (
    Admin,
    Flag,
    RequestFailed,
    Verb,
    flag,
    namespace_path,
    partition_of,
    run_group,
    topic_path,
)
from geminga.cli.admin.policy_flags import seconds
from geminga.cli.arguments.parser import Parser
from geminga.cli.figures import rows
from geminga.cli.figures.scrape import scrape
from geminga.cli.show.output import show_rows
from geminga.clock import RealClock

SUBSCRIPTION = flag("--subscription", "-s", required=True, help="the subscription")
FORCE = flag("--force", "-f", action="store_true", default=None, help="disconnect all clients first")
EXPIRE_TIME = flag("--expireTime", "-t", type=seconds, required=True, help="older than this: 10, 30s, 5m")


def message_id(text: str) -> dict[str, int] | str:
    """`earliest`, `latest` or `ledger:entry`."""
    if text in ("earliest", "latest"):
        return text
    ledger, _, entry = text.partition(":")
    if not (ledger.isdigit() and entry.isdigit()):
        raise argparse.ArgumentTypeError(f"expected earliest, latest or ledger:entry, not {text!r}")
    return {"ledgerId": int(ledger), "entryId": int(entry)}


def _at(method: str, path: str = "", *query: str) -> Callable[[Admin, Any], Any]:
    """A request about the topic; the flags named in `query` go along."""

    def run(admin: Admin, flags: Any) -> Any:
        given = {name: getattr(flags, name) for name in query}
        return admin.call(method, topic_path(flags.subject) + path, **given)

    return run


def _subscription(flags: Any) -> str:
    return f"{topic_path(flags.subject)}/subscription/{quote(flags.subscription, safe='')}"


def _at_subscription(method: str, path: str = "", *query: str) -> Callable[[Admin, Any], Any]:
    def run(admin: Admin, flags: Any) -> Any:
        given = {name: getattr(flags, name) for name in query}
        return admin.call(method, _subscription(flags) + path.format(flags=flags), **given)

    return run


def _list(admin: Admin, flags: Any) -> Any:
    """Names into a pipe; on a terminal, or where they are asked for, a line of figures for each topic."""
    names = admin.call("GET", namespace_path(flags.subject).replace("/namespaces/", "/persistent/", 1))
    if not (flags.json or flags.long or sys.stdout.isatty()):
        return names
    found = rows.with_unloaded(rows.rows(scrape(admin.url), with_system=True), names)
    shown = [rows.public(row) for row in found] if flags.json else found
    show_rows(rows.COLUMNS, shown, as_json=flags.json, nothing=f"{flags.subject} has no topics")
    return None


def _create_subscription(admin: Admin, flags: Any) -> Any:
    return admin.call("PUT", _subscription(flags), flags.messageId)


def _create_partitioned(admin: Admin, flags: Any) -> Any:
    return admin.call("PUT", topic_path(flags.subject) + "/partitions", flags.partitions)


def _reset(admin: Admin, flags: Any) -> Any:
    if flags.messageId is not None:
        body = flags.messageId
        if isinstance(body, str):
            body = {"ledgerId": -1, "entryId": -1} if body == "earliest" else _LATEST
        return admin.call("POST", _subscription(flags) + "/resetcursor", body)
    at_ms = RealClock().now_ms() - flags.time * 1000
    return admin.call("POST", f"{_subscription(flags)}/resetcursor/{at_ms}")


def _expire(admin: Admin, flags: Any) -> Any:
    if (flags.expireTime is None) is (flags.position is None):
        raise RequestFailed("give either --expireTime or --position")
    if flags.position is None:
        return admin.call("POST", f"{_subscription(flags)}/expireMessages/{flags.expireTime}")
    body = flags.position
    if isinstance(body, dict):
        body = {**body, "partitionIndex": partition_of(flags.subject), "excluded": flags.excluded}
    return admin.call("POST", _subscription(flags) + "/expireMessages", body)


_LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


def _verb(text: str, run: Callable[[Admin, Any], Any], *flags: Flag) -> Verb:
    return Verb(text, "TOPIC", flags, run)


VERBS = {
    "list": Verb(
        "list a namespace's topics",
        "TENANT/NAMESPACE",
        (
            flag("--long", "-l", action="store_true", help="rates, backlog and clients, into a pipe as well"),
            flag("--json", action="store_true", help="the same as JSON"),
        ),
        _list,
    ),
    "create": _verb("create a topic", _at("PUT")),
    "create-partitioned-topic": _verb(
        "create a partitioned topic", _create_partitioned, flag("--partitions", "-p", type=int, required=True)
    ),
    "delete": _verb("delete a topic", _at("DELETE", "", "force"), FORCE),
    "delete-partitioned-topic": _verb(
        "delete a partitioned topic", _at("DELETE", "/partitions", "force"), FORCE
    ),
    "stats": _verb("show a topic's statistics", _at("GET", "/stats")),
    "stats-internal": _verb("show a topic's ledgers and cursors", _at("GET", "/internalStats")),
    "partitioned-stats": _verb("show statistics of all partitions", _at("GET", "/partitioned-stats")),
    "subscriptions": _verb("list a topic's subscriptions", _at("GET", "/subscriptions")),
    "create-subscription": _verb(
        "create a subscription",
        _create_subscription,
        SUBSCRIPTION,
        flag("--messageId", "-m", type=message_id, default="latest", help="earliest, latest or ledger:entry"),
    ),
    "unsubscribe": _verb(
        "delete a subscription", _at_subscription("DELETE", "", "force"), SUBSCRIPTION, FORCE
    ),
    "skip": _verb(
        "acknowledge the next messages",
        _at_subscription("POST", "/skip/{flags.count}"),
        SUBSCRIPTION,
        flag("--count", "-n", type=int, required=True, help="how many"),
    ),
    "clear-backlog": _verb("acknowledge everything", _at_subscription("POST", "/skip_all"), SUBSCRIPTION),
    "expire-messages": _verb(
        "acknowledge what is older, or all up to a message",
        _expire,
        SUBSCRIPTION,
        flag("--expireTime", "-t", type=seconds, default=None, help="older than this: 10, 30s, 5m"),
        flag("--position", "-p", type=message_id, default=None, help="up to and with ledger:entry"),
        flag(
            "--exclude-reset-position",
            "-e",
            dest="excluded",
            action="store_true",
            help="one message more than the position says, as Pulsar counts",
        ),
    ),
    "expire-messages-all-subscriptions": _verb(
        "acknowledge what is older, on all subscriptions",
        lambda admin, flags: admin.call(
            "POST", f"{topic_path(flags.subject)}/all_subscription/expireMessages/{flags.expireTime}"
        ),
        EXPIRE_TIME,
    ),
    "reset-cursor": _verb(
        "go back to a time or a message",
        _reset,
        SUBSCRIPTION,
        flag("--time", "-t", type=seconds, default=0, help="so long ago: 30s, 10m, 3h"),
        flag("--messageId", "-m", type=message_id, default=None, help="earliest, latest or ledger:entry"),
    ),
    "last-message-id": _verb("show the last message's position", _at("GET", "/lastMessageId")),
    "unload": _verb("close a topic; it is loaded when asked for", _at("PUT", "/unload")),
    "terminate": _verb("take no more messages", _at("POST", "/terminate")),
    "partitioned-terminate": _verb(
        "take no more messages, in any partition", _at("POST", "/terminate/partitions")
    ),
    "truncate": _verb(
        "delete all messages but those in the newest ledger; subscriptions move to the end",
        _at("DELETE", "/truncate"),
    ),
}


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    return run_group(kind, "topics", VERBS, arguments)
