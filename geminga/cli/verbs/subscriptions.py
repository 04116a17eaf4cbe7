"""`geminga subscriptions`: the verbs of `topics` that are about subscriptions, with shorter names."""

from __future__ import annotations

from functools import partial

from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.topics import SUBSCRIPTION_VERBS

NAMES = {
    "list": "subscriptions",
    "create": "create-subscription",
    "delete": "unsubscribe",
    "peek": "peek-messages",
    "skip": "skip",
    "clear-backlog": "clear-backlog",
    "expire": "expire-messages",
    "expire-all": "expire-messages-all-subscriptions",
    "seek": "reset-cursor",
    "analyze-backlog": "analyze-backlog",
    "get-properties": "get-subscription-properties",
    "update-properties": "update-subscription-properties",
    "get-replicated": "get-replicated-subscription-status",
    "set-replicated": "set-replicated-subscription-status",
}
VERBS = {name: SUBSCRIPTION_VERBS[of_topics] for name, of_topics in NAMES.items()}
run = partial(run_group, "subscriptions", VERBS)
