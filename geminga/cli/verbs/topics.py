"""`geminga topics`: topics, their subscriptions and messages, and older verbs of their policies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.arguments.options import count, positive, time_ms
from geminga.cli.arguments.parser import Parser
from geminga.cli.show.output import show_rows
from geminga.cli.verbs import topic_actions as actions
from geminga.cli.verbs.brokers import pair_lines
from geminga.cli.verbs.namespaces import ACTIONS
from geminga.cli.verbs.namespaces import actions as permitted
from geminga.cli.verbs.rows.older_policies import older_policies
from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.values import (
    EARLIEST,
    many,
    mapping,
    message_id,
    names,
    pairs,
    position,
    seconds,
    size_bytes,
)
from geminga.cli.verbs.rows.verb import Flag, Flags, Verb, flag, switch

TOPIC = "{topic}"
OF_SUBSCRIPTION = "{topic}/subscription/{subscription}"
SUBSCRIPTION = flag("--subscription", "-s", required=True, help="the subscription")
FORCE = switch("--force", "-f", default=None, help="disconnect all clients first")
DELETE_SCHEMA = switch("--deleteSchema", "-d", help="accepted: the schema is deleted in any case")
EXPIRE_TIME = flag("--expireTime", "-t", type=seconds, required=True, help="older than this: 10, 30s, 5m")
ROLE = flag("--role", "-r", required=True, help="the role")
SYSTEM = switch("--include-system-topic", "-ist", default=None, help="the broker's own as well")
PARTITIONS = flag("--partitions", "-p", type=positive, required=True, help="how many")
METADATA = flag("--metadata", "-m", **many(pairs), help="properties: a=1,b=2")
PROPERTY = flag("--property", "-p", dest="properties", **many(pairs), help="a=1; may be repeated")
EXCLUDED = switch(
    "--exclude-reset-position", "-e", dest="excluded", help="one message more than the position says"
)
WAIT = switch("--wait-complete", "-w", dest="waits", help="until it has ended")
STATS: tuple[Flag, ...] = (
    switch(
        "--get-precise-backlog",
        "-gpb",
        default=None,
        help="exact backlogs, which they always are here: in entries, a batch is one; analyze-backlog reads "
        "them, part by part, and counts messages",
    ),
    switch(
        "--get-subscription-backlog-size",
        "-sbs",
        default=True,
        help="bytes of each backlog (default: yes)",
    ),
    switch("--get-earliest-time-in-backlog", "-etb", default=None, help="when the oldest was published"),
)
STATS_QUERY = {
    "getPreciseBacklog": "get_precise_backlog",
    "subscriptionBacklogSize": "get_subscription_backlog_size",
    "getEarliestTimeInBacklog": "get_earliest_time_in_backlog",
}


def _list(admin: Admin, flags: Flags) -> Any:
    """Names into a pipe, and as pulsar-admin; on a terminal, or where they are asked for, a line of figures
    for each topic.
    """
    found = actions.listed(admin, flags, "", bundle=flags.bundle)
    for_people = sys.stdout.isatty() and flags.program == Parser.PROGRAM
    if not (flags.json or flags.long or for_people):
        return found
    from geminga.cli.figures import rows
    from geminga.cli.figures.scrape import scrape

    known = rows.with_unloaded(rows.rows(scrape(admin.url), with_system=True), found)
    if flags.json:
        return [rows.public(row) for row in known]
    show_rows(rows.COLUMNS, known, as_json=False, nothing=f"{flags.namespace or 'the broker'} has no topics")
    return None


def _shown_by(name: str) -> Callable[[Admin, Flags], Any]:
    """A function of `messages.py`, which imports what few verbs need."""

    def run(admin: Admin, flags: Flags) -> Any:
        return getattr(importlib.import_module("geminga.cli.verbs.messages"), name)(admin, flags)

    return run


def _verb(text: str, method: str, path: str = "", *flags: Flag, **more: Any) -> Verb:
    return Verb(text, method, f"{TOPIC}{path}", flags, **more)


def _of_subscription(text: str, method: str, path: str = "", *flags: Flag, **more: Any) -> Verb:
    return Verb(text, method, f"{OF_SUBSCRIPTION}{path}", (SUBSCRIPTION, *flags), **more)


def _properties(flags: Flags) -> dict[str, str]:
    if bool(flags.properties) is flags.clear:
        raise RequestFailed("give either --property or --clear")
    return mapping(flags.properties)


def _enabled(flags: Flags) -> bool:
    if flags.enable is flags.disable:
        raise RequestFailed("give either --enable or --disable")
    return bool(flags.enable)


TOPIC_VERBS = {
    "list": Verb(
        "list a namespace's topics, or all",
        "GET",
        "persistent/{namespace}",
        (
            flag("--topic-domain", "-td", choices=actions.DOMAINS, help="of this domain only"),
            flag("--bundle", "-b", help="of this bundle only: 0x00000000_0x40000000"),
            SYSTEM,
            switch("--long", "-l", help="rates, backlog and clients, into a pipe as well"),
        ),
        run=_list,
        takes_all=True,
    ),
    "list-partitioned-topics": Verb(
        "list a namespace's partitioned topics, or all",
        "GET",
        "persistent/{namespace}/partitioned",
        (SYSTEM,),
        run=lambda admin, flags: actions.listed(admin, flags, "/partitioned"),
        takes_all=True,
    ),
    "create": _verb("create a topic", "PUT", "", METADATA, body=actions.properties_or_none),
    "create-partitioned-topic": _verb(
        "create a partitioned topic", "PUT", "/partitions", PARTITIONS, METADATA, body=actions.partitions
    ),
    "create-missed-partitions": _verb(
        "create partitions that a partitioned topic lacks", "POST", "/createMissedPartitions"
    ),
    "update-partitioned-topic": _verb(
        "add partitions",
        "POST",
        "/partitions",
        PARTITIONS,
        switch("--update-local-only", "-ulo", default=None, help="in this cluster only"),
        switch("--force", "-f", default=None, help="without looking at the topic first"),
        query={"updateLocalTopicOnly": "update_local_only", "force": "force"},
        body="partitions",
    ),
    "get-partitioned-topic-metadata": _verb("show how many partitions there are", "GET", "/partitions"),
    "delete": _verb(
        "delete a topic",
        "DELETE",
        "",
        FORCE,
        DELETE_SCHEMA,
        switch("--regex", "-r", help="all topics of the namespace that the pattern fits"),
        switch("--from-file", help="the topics that this file lists"),
        run=actions.delete,
    ),
    "delete-partitioned-topic": _verb(
        "delete a partitioned topic", "DELETE", "/partitions", FORCE, DELETE_SCHEMA, query={"force": "force"}
    ),
    "get-properties": _verb("show the properties", "GET", "/properties", show=pair_lines),
    "update-properties": _verb(
        "set properties",
        "PUT",
        "/properties",
        PROPERTY,
        body=lambda flags: mapping(flags.properties),
    ),
    "remove-properties": _verb(
        "unset a property",
        "DELETE",
        "/properties",
        flag("--key", "-k", help="its name"),
        query={"key": "key"},
    ),
    "lookup": Verb(
        "show which broker serves a topic",
        "GET",
        "/lookup/v2/topic/{topic}",
        show=lambda answer, _: answer["brokerUrl"],
    ),
    "partitioned-lookup": _verb(
        "show which brokers serve the partitions",
        "GET",
        "/partitions",
        switch("--sort-by-broker", "-s", help="by broker"),
        run=actions.partitioned_lookup,
    ),
    "bundle-range": Verb("show the bundle that a topic is in", "GET", "/lookup/v2/topic/{topic}/bundle"),
    "stats": _verb("show a topic's statistics", "GET", "/stats", *STATS, query=STATS_QUERY),
    "stats-internal": _verb(
        "show a topic's ledgers and cursors",
        "GET",
        "/internalStats",
        switch("--metadata", "-m", default=None, help="with the ledgers' own records"),
        query={"metadata": "metadata"},
    ),
    "info-internal": _verb("show a topic's own record", "GET", "/internal-info"),
    "partitioned-stats": _verb(
        "show statistics of all partitions",
        "GET",
        "/partitioned-stats",
        *STATS,
        switch("--per-partition", help="those of each as well"),
        query={**STATS_QUERY, "perPartition": "per_partition"},
    ),
    "partitioned-stats-internal": _verb(
        "show ledgers and cursors of all partitions", "GET", "/partitioned-internalStats"
    ),
    "permissions": _verb("show the permissions of each role", "GET", "/permissions", show=pair_lines),
    "grant-permission": _verb(
        "grant permissions to a role",
        "POST",
        "/permissions/{role}",
        ROLE,
        flag("--actions", "-a", required=True, **many(names), help=",".join(ACTIONS)),
        body=permitted,
    ),
    "revoke-permission": _verb("revoke the permissions of a role", "DELETE", "/permissions/{role}", ROLE),
    "unload": _verb("close a topic; it is loaded when asked for", "PUT", "/unload"),
    "terminate": _verb("take no more messages", "POST", "/terminate", show=actions.terminated),
    "partitioned-terminate": _verb(
        "take no more messages, in any partition",
        "POST",
        "/terminate/partitions",
        show=actions.partitions_terminated,
    ),
    "truncate": _verb(
        "delete all messages but those in the newest ledger; subscriptions move to the end",
        "DELETE",
        "/truncate",
    ),
    "trim-topic": _verb("delete what no subscription needs and no retention keeps", "POST", "/trim"),
    "compact": _verb("keep the newest message of each key", "PUT", "/compaction", show=actions.compacting),
    "compaction-status": _verb(
        "show how the last compaction went", "GET", "/compaction", WAIT, run=actions.compaction
    ),
    "offload": _verb(
        "move ledgers to other storage",
        "PUT",
        "/offload",
        flag("--size-threshold", "-s", type=size_bytes, required=True, help="what stays: 10M, 5G"),
        run=actions.offload,
    ),
    "offload-status": _verb(
        "show how the last offload went", "GET", "/offload", WAIT, run=actions.offloading
    ),
    "get-shadow-topics": _verb("show the shadow topics", "GET", "/shadowTopics"),
    "set-shadow-topics": _verb(
        "set the shadow topics",
        "PUT",
        "/shadowTopics",
        flag("--topics", "-t", required=True, **many(names), help="topics: a,b,c"),
        body="topics",
    ),
    "remove-shadow-topics": _verb("have no shadow topics", "DELETE", "/shadowTopics"),
    "create-shadow-topic": _verb(
        "create a shadow topic",
        "PUT",
        "",
        flag("--source", "-s", required=True, help="the topic that it shows"),
        flag("--properties", "-p", **many(pairs), help="a=1,b=2"),
        run=actions.create_shadow,
    ),
    "get-shadow-source": _verb(
        "show which topic a shadow topic shows", "GET", "/properties", show=actions.shadow_source
    ),
}
MESSAGE_VERBS = {
    "last-message-id": _verb("show the last message's position", "GET", "/lastMessageId"),
    "get-message-id": _verb(
        "show the position of the first message since a time",
        "GET",
        "/messageid/{datetime}",
        flag("--datetime", "-d", type=time_ms, required=True, help="2026-12-24T18:00:00Z"),
    ),
    "get-message-by-id": _verb(
        "show a message",
        "GET",
        "/ledger/{ledger}/entry/{entry}",
        flag("--ledgerId", "-l", dest="ledger", type=count, required=True, help="its ledger"),
        flag("--entryId", "-e", dest="entry", type=count, required=True, help="its entry"),
        run=_shown_by("by_id"),
    ),
    "examine-messages": _verb(
        "show a message by its distance from the first or the last one",
        "GET",
        "/examinemessage",
        flag(
            "--initialPosition",
            "-i",
            dest="start",
            choices=("earliest", "latest"),
            default="latest",
            help="from where (default: latest)",
        ),
        flag("--messagePosition", "-m", dest="number", type=positive, default=1, help="1: the first"),
        run=_shown_by("examine"),
    ),
    "get-backlog-size": _verb(
        "show how many bytes stand behind a position",
        "PUT",
        "/backlogSize",
        flag("--messageId", "-m", dest="place", type=position, default=EARLIEST, help="ledger:entry"),
        body="place",
    ),
}
SUBSCRIPTION_VERBS = {
    "subscriptions": _verb("list a topic's subscriptions", "GET", "/subscriptions"),
    "create-subscription": _of_subscription(
        "create a subscription",
        "PUT",
        "",
        flag("--messageId", "-m", type=message_id, default="latest", help="earliest, latest or ledger:entry"),
        switch("--replicated", "-r", default=None, help="in all clusters"),
        PROPERTY,
        query={"replicated": "replicated"},
        body=actions.start_of_subscription,
    ),
    "unsubscribe": _of_subscription("delete a subscription", "DELETE", "", FORCE, query={"force": "force"}),
    "peek-messages": _of_subscription(
        "look at the next messages",
        "GET",
        "/position/1",
        flag("--count", "-n", type=positive, default=1, help="how many (default: 1)"),
        switch("--show-server-marker", "-ssm", help="accepted: there are no markers here"),
        flag(
            "--transaction-isolation-level",
            "-til",
            choices=("READ_COMMITTED", "READ_UNCOMMITTED"),
            help="accepted: there are no transactions here",
        ),
        run=_shown_by("peek"),
    ),
    "skip": _of_subscription(
        "acknowledge the next entries; a batch is one",
        "POST",
        "/skip/{count}",
        flag("--count", "-n", type=count, required=True, help="how many"),
    ),
    "clear-backlog": _of_subscription("acknowledge everything", "POST", "/skip_all"),
    "expire-messages": _of_subscription(
        "acknowledge what is older, or all up to a message",
        "POST",
        "/expireMessages",
        flag("--expireTime", "-t", type=seconds, default=None, help="older than this: 10, 30s, 5m"),
        flag("--position", "-p", type=message_id, default=None, help="up to and with ledger:entry"),
        EXCLUDED,
        run=actions.expire,
    ),
    "expire-messages-all-subscriptions": _verb(
        "acknowledge what is older, on all subscriptions",
        "POST",
        "/all_subscription/expireMessages/{expireTime}",
        EXPIRE_TIME,
    ),
    "reset-cursor": _of_subscription(
        "go back to a time or a message",
        "POST",
        "/resetcursor",
        flag("--time", "-t", type=seconds, default=None, help="so long ago: 30s, 10m, 3h"),
        flag("--messageId", "-m", type=message_id, default=None, help="earliest, latest or ledger:entry"),
        EXCLUDED,
        run=actions.reset,
    ),
    "analyze-backlog": _of_subscription(
        "read the backlog and count entries and messages, at most so many at once as the broker allows",
        "POST",
        "/analyzeBacklog",
        flag("--position", "-p", type=position, default=None, help="from here on: ledger:entry"),
        body=actions.analyze_from,
    ),
    "get-subscription-properties": _of_subscription("show the properties", "GET", "/properties"),
    "update-subscription-properties": _of_subscription(
        "set the properties",
        "PUT",
        "/properties",
        PROPERTY,
        switch("--clear", "-c", help="have none"),
        body=_properties,
    ),
    "get-replicated-subscription-status": _of_subscription(
        "show whether it is in all clusters", "GET", "/replicatedSubscriptionStatus"
    ),
    "set-replicated-subscription-status": _of_subscription(
        "set whether it is in all clusters",
        "POST",
        "/replicatedSubscriptionStatus",
        switch("--enable", "-e", help="it is"),
        switch("--disable", "-d", help="it is not"),
        body=_enabled,
    ),
}
VERBS = {**TOPIC_VERBS, **SUBSCRIPTION_VERBS, **MESSAGE_VERBS, **older_policies()}
run = partial(run_group, "topics", VERBS)
