"""Cases about policies and the real broker's answers to them: read, played against a broker, recorded anew.

    python -m tests.e2e.operators.policy_recording pulsar://localhost:6650 http://localhost:8080

asks a real Pulsar 4.0.x (CONTRIBUTING.md, "Recording what Pulsar does"). `policy_recording.json` has the
cases: each a list of steps [method, path, body, status, answer]. `N` at the start of a path is a namespace of
its own, `T` a topic in it. The body is sent as it is; an answer is JSON, or null where Pulsar answered with
something else (plain text, a page of HTML).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.admin_http import Admin, Answer
from tests.recordings.recording import Recording

SETTINGS = {
    # Without these two a topic has no policies.
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    # `?applied=true` shows the broker's values where neither topic nor namespace has one. All are defaults.
    "backlogQuotaDefaultLimitBytes": "-1",
    "backlogQuotaDefaultLimitSecond": "-1",
    "backlogQuotaDefaultRetentionPolicy": "producer_request_hold",
    "brokerDeduplicationEnabled": "false",
    "brokerDeduplicationSnapshotIntervalSeconds": "120",
    "brokerDeleteInactiveTopicsEnabled": "true",
    "brokerDeleteInactiveTopicsFrequencySeconds": "60",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "",
    "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
    "defaultRetentionSizeInMB": "0",
    "defaultRetentionTimeInMinutes": "0",
    "delayedDeliveryEnabled": "true",
    "delayedDeliveryMaxDelayInMillis": "0",
    "delayedDeliveryTickTimeMillis": "1000",
    "dispatchThrottlingRatePerSubscriptionInByte": "0",
    "dispatchThrottlingRatePerSubscriptionInMsg": "0",
    "dispatchThrottlingRatePerTopicInByte": "0",
    "dispatchThrottlingRatePerTopicInMsg": "0",
    "isAllowAutoUpdateSchemaEnabled": "true",
    "isSchemaValidationEnforced": "false",
    "maxConsumersPerSubscription": "0",
    "maxConsumersPerTopic": "0",
    "maxProducersPerTopic": "0",
    "maxPublishRatePerTopicInBytes": "0",
    "maxPublishRatePerTopicInMessages": "0",
    "maxSubscriptionsPerTopic": "0",
    "maxUnackedMessagesPerConsumer": "50000",
    "maxUnackedMessagesPerSubscription": "200000",
    "schemaCompatibilityStrategy": "FULL",
    "subscribeThrottlingRatePerConsumer": "0",
    "subscriptionTypesEnabled": "Exclusive,Failover,Key_Shared,Shared",
    "ttlDurationDefaultInSeconds": "0",
}
RECORDING = Recording(Path(__file__).with_name("policy_recording.json"), SETTINGS)
STACK_TRACE = "\n\nStacktrace:"
SETTLING_S = 0.25
"""How long the real broker takes until it shows a topic's new policy: it goes through a system topic."""


class Step(NamedTuple):
    method: str
    path: str
    body: str | None
    status: int
    answer: Any


class Player:
    """Plays cases against one broker, each in a namespace of its own."""

    def __init__(self, admin: Admin, *, settling_s: float = 0.0) -> None:
        self._admin = admin
        self._settling_s = settling_s
        self._number = 0

    def play(self, steps: list[Step]) -> list[Step]:
        """The same steps with this broker's answers."""
        self._number += 1
        namespace = f"public/policies-{os.getpid()}-{time.time_ns()}-{self._number}"
        roots = {"N": f"/admin/v2/namespaces/{namespace}", "T": f"/admin/v2/persistent/{namespace}/topic"}
        for root in roots.values():
            assert self._admin.put(root).status == 204
        played = []
        for step in steps:
            path = roots[step.path[0]] + step.path[1:]
            raw = None if step.body is None else step.body.encode()
            answer = self._admin.request(step.method, path, raw=raw)
            if step.method != "GET" and step.path[0] == "T":
                time.sleep(self._settling_s)  # noqa: TID251 - only while recording: it tells nobody when
            played.append(step._replace(status=answer.status, answer=_plain(answer, path, namespace)))
        return played


def _plain(answer: Answer, path: str, namespace: str) -> Any:
    """The answer without what differs between two runs: names, stack traces, the order of sets."""
    if not answer.body:
        return ""
    try:
        shown = json.loads(answer.text.replace(namespace, "NAMESPACE"))
    except ValueError:
        return None
    if isinstance(shown, dict) and isinstance(shown.get("reason"), str):
        shown["reason"] = shown["reason"].partition(STACK_TRACE)[0]
    if path.partition("?")[0].endswith("/subscriptionTypesEnabled") and isinstance(shown, list):
        shown.sort()
    return shown


def cases() -> dict[str, list[Step]]:
    return {name: [Step(*step) for step in steps] for name, steps in RECORDING.read().cases.items()}


def play(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Step]]:
    player, asked = Player(Admin(web_url), settling_s=SETTLING_S), cases()
    return {name: player.play(asked[name]) for name in names}


def main(arguments: Sequence[str] | None = None) -> None:
    RECORDING.main(list(cases()), play, arguments)


if __name__ == "__main__":
    main()
