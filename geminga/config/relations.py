"""Checks the relations between settings, beyond the bounds of each."""

from __future__ import annotations

import re

from geminga.config.config import Config
from geminga.errors import InvalidName
from geminga.names import TopicName

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
_HOST_NAME = rf"{_LABEL}(\.{_LABEL})*\.?"


def broken_relations(config: Config) -> list[str]:
    """One line for each problem, with the names of the keys."""
    problems = []
    shortest = config.managed_ledger_min_ledger_rollover_time_minutes
    longest = config.managed_ledger_max_ledger_rollover_time_minutes
    if shortest > longest:
        problems.append(
            f"managedLedgerMinLedgerRolloverTimeMinutes ({shortest}) must not exceed "
            f"managedLedgerMaxLedgerRolloverTimeMinutes ({longest})"
        )
    if config.broker_service_port == config.web_service_port != 0:
        problems.append(
            f"brokerServicePort and webServicePort are both {config.web_service_port}; they must differ"
        )
    if config.disk_usage_lwm_threshold > config.disk_usage_threshold:
        problems.append(
            f"diskUsageLwmThreshold ({config.disk_usage_lwm_threshold}) must not exceed "
            f"diskUsageThreshold ({config.disk_usage_threshold})"
        )
    problems += [
        f"gemingaWebServiceHostNames: {name!r} is no host name; write names without scheme, port or '*'"
        for name in config.geminga_web_service_host_names
        if not re.fullmatch(_HOST_NAME, name)
    ]
    problems += _log_topic_problems(config)
    minor, major = config.minor_compaction_threshold, config.major_compaction_threshold
    if config.minor_compaction_interval and config.major_compaction_interval and minor >= major > 0:
        problems.append(
            f"minorCompactionThreshold ({minor}) must be less than majorCompactionThreshold ({major})"
        )
    if not config.subscription_types_enabled:
        problems.append("subscriptionTypesEnabled names no type; leave the key out to allow all of them")
    return problems


def _log_topic_problems(config: Config) -> list[str]:
    """Problems of the topic to which the delivery log is to be shipped."""
    text = config.geminga_delivery_log_topic
    if not text:
        return []
    if not config.geminga_delivery_log_directory:
        return [
            "gemingaDeliveryLogTopic ships a log that is not written; set gemingaDeliveryLogDirectory too"
        ]
    try:
        name = TopicName.parse(text)
    except InvalidName as error:
        return [f"gemingaDeliveryLogTopic: {error}"]
    if not name.is_persistent:
        return [f"gemingaDeliveryLogTopic: {name} is not persistent; name a persistent:// topic"]
    return []
