"""`geminga brokers`: the broker itself, its health, its configuration."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.cli.arguments.options import count
from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, switch

CONFIGURATION = "brokers/configuration"
NAME = flag("--config", "-c", required=True, help="a setting of broker.conf")


def pair_lines(answer: Any, _: Flags) -> list[str]:
    """A line for each key with its value, as pulsar-admin prints maps."""
    return [f"{key}    {_java_text(value)}" for key, value in (answer or {}).items()]


def _java_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(str(item) for item in value)}]"
    return "null" if value is None else str(value)


def _ok(_: Any, __: Flags) -> str:
    return "ok"


VERBS = {
    "list": Verb("list the brokers of a cluster", "GET", "brokers/{cluster}"),
    "leader-broker": Verb("show which broker leads", "GET", "brokers/leaderBroker"),
    "namespaces": Verb(
        "show the namespaces of a broker",
        "GET",
        "brokers/{cluster}/{broker}/ownedNamespaces",
        (flag("--url", "-u", dest="broker", required=True, help="host:port of the broker"),),
    ),
    "list-dynamic-config": Verb("list settings that can change at run time", "GET", CONFIGURATION),
    "get-all-dynamic-config": Verb(
        "show what was changed at run time", "GET", f"{CONFIGURATION}/values", show=pair_lines
    ),
    "get-runtime-config": Verb("show all settings", "GET", f"{CONFIGURATION}/runtime", show=pair_lines),
    "update-dynamic-config": Verb(
        "change a setting at run time",
        "POST",
        f"{CONFIGURATION}/{{config}}/{{value}}",
        (NAME, flag("--value", "-v", required=True, help="its value")),
    ),
    "delete-dynamic-config": Verb(
        "go back to what the setting was at the start", "DELETE", f"{CONFIGURATION}/{{config}}", (NAME,)
    ),
    "get-internal-config": Verb("show where metadata are", "GET", "brokers/internal-configuration"),
    "healthcheck": Verb(
        "try whether the broker works",
        "GET",
        "brokers/health",
        (
            flag(
                "--topic-version",
                "-tv",
                choices=("V1", "V2"),
                help="of the names of the topics that it tries with",
            ),
        ),
        {"topicVersion": "topic_version"},
        show=_ok,
    ),
    "backlog-quota-check": Verb("apply backlog quotas now", "GET", "brokers/backlog-quota-check", show=_ok),
    "version": Verb("show the broker's version", "GET", "brokers/version"),
    "shutdown": Verb(
        "stop the broker",
        "POST",
        "brokers/shutdown",
        (
            flag(
                "--max-concurrent-unload-per-sec",
                "-m",
                type=count,
                default=0,
                help="topics to unload a second; 0: no limit",
            ),
            switch("--forced-terminate-topic", "-f", help="do not wait for topics"),
        ),
        {
            "maxConcurrentUnloadPerSec": "max_concurrent_unload_per_sec",
            "forcedTerminateTopic": "forced_terminate_topic",
        },
        show=lambda _, __: "Successfully shutdown broker gracefully",
    ),
}
run = partial(run_group, "brokers", VERBS)
