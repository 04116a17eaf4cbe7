"""What is kept and what is let go: scripted cases, and what the real broker did in each.

    python -m tests.broker.topic.lifetime_recording pulsar://localhost:6650 http://localhost:8080
    python -m tests.broker.topic.lifetime_recording pulsar://... http://... inactive truncate  # only these

The broker has small ledgers and looks often at what is kept: `SETTINGS`; CONTRIBUTING.md ("Recording what
Pulsar does") says how to start it. `lifetime_recording.json` has the cases: steps [what, arguments, outcome].
All run at once, each in a namespace of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.recordings.recording import Recording

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "5",
    "backlogQuotaCheckIntervalInSeconds": "5",
    "brokerDeleteInactiveTopicsFrequencySeconds": "5",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "600",
    "messageExpiryCheckIntervalInMinutes": "1",
    "subscriptionExpiryCheckIntervalInMinutes": "1",
    # From here on: defaults.
    "brokerDeleteInactiveTopicsEnabled": "true",
    "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
    "defaultRetentionSizeInMB": "0",
    "defaultRetentionTimeInMinutes": "0",
    "subscriptionExpirationTimeMinutes": "0",
    "ttlDurationDefaultInSeconds": "0",
    "backlogQuotaCheckEnabled": "true",
    "backlogQuotaDefaultLimitBytes": "-1",
    "backlogQuotaDefaultLimitSecond": "-1",
    "preciseTimeBasedBacklogQuotaCheck": "false",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
}
RECORDING = Recording(Path(__file__).with_name("lifetime_recording.json"), SETTINGS)
SETTLING_S = 0.5
BEHIND_THE_END = 100
"""An index of an entry that is far beyond the last one."""


class Step(NamedTuple):
    what: str
    arguments: list[Any]
    outcome: Any


def cases() -> dict[str, list[Step]]:
    return {name: [Step(*step) for step in steps] for name, steps in RECORDING.read().cases.items()}


def place_of(internal_stats: Any, index: int) -> dict[str, int]:
    """The message id of a topic's entry with this index, by its `internalStats`; below 0: the earliest."""
    if index < 0:
        return {"ledgerId": -1, "entryId": -1}
    for ledger in internal_stats["ledgers"][:-1]:
        if index < ledger["entries"]:
            return {"ledgerId": ledger["ledgerId"], "entryId": index}
        index -= ledger["entries"]
    return {"ledgerId": internal_stats["ledgers"][-1]["ledgerId"], "entryId": index}


class RealBroker:
    """One case on a running broker, over its client and its admin API."""

    def __init__(self, service_url: str, web_url: str, number: int) -> None:
        import pulsar

        from tests.e2e.admin_http import Admin

        self._pulsar = pulsar
        self._service_url = service_url
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        self._client = pulsar.Client(service_url, operation_timeout_seconds=4, logger=logger)
        self._admin = Admin(web_url)
        namespace = f"public/lifetime-{os.getpid()}-{number}"
        self._roots = {"N": f"/admin/v2/namespaces/{namespace}", "T": f"/admin/v2/persistent/{namespace}/t"}
        self._topic = f"persistent://{namespace}/t"
        self._consumers: dict[str, list[Any]] = {}
        self._producer: Any = None
        for root in self._roots.values():
            assert self._admin.put(root).status == 204

    def play(self, steps: list[Step]) -> list[Step]:
        return [step._replace(outcome=getattr(self, step.what)(*step.arguments)) for step in steps]

    def set(self, path: str, body: Any) -> int:
        answer = self._admin.post(self._roots[path[0]] + path[1:], body)
        time.sleep(SETTLING_S)  # noqa: TID251 - the real broker tells nobody
        return answer.status

    def remove(self, path: str) -> int:
        answer = self._admin.delete(self._roots[path[0]] + path[1:])
        time.sleep(SETTLING_S)  # noqa: TID251
        return answer.status

    def subscribe(self, name: str) -> int:
        return self._admin.put(f"{self._roots['T']}/subscription/{name}", "earliest").status

    def publish(self, count: int, size: int, delay_s: int = 0) -> str:
        """By a new producer, one entry for each message."""
        try:
            producer = self._client.create_producer(
                self._topic, batching_enabled=False, send_timeout_millis=4000
            )
            for _ in range(count):
                producer.send(
                    b"x" * size, **({"deliver_after": timedelta(seconds=delay_s)} if delay_s else {})
                )
            producer.close()
        except self._pulsar.PulsarException as error:
            return type(error).__name__
        return "ok"

    def skip(self, name: str, count: int) -> int:
        return self._admin.post(f"{self._roots['T']}/subscription/{name}/skip/{count}").status

    def skip_all(self, name: str) -> int:
        return self._admin.post(f"{self._roots['T']}/subscription/{name}/skip_all").status

    def acknowledge(self, name: str, indexes: list[int]) -> str:
        """Receive everything, acknowledge these, leave."""
        consumer = self._client.subscribe(self._topic, name, self._pulsar.ConsumerType.Shared)
        received = []
        try:
            while True:
                received.append(consumer.receive(2000))
        except self._pulsar.Timeout:
            pass
        for index in indexes:
            consumer.acknowledge(received[index])
        time.sleep(SETTLING_S)  # noqa: TID251
        consumer.close()
        return "ok"

    def connect(self, name: str) -> str:
        consumer = self._client.subscribe(self._topic, name, self._pulsar.ConsumerType.Shared)
        self._consumers.setdefault(name, []).append(consumer)
        return "ok"

    def disconnect(self, name: str) -> str:
        for consumer in self._consumers.pop(name):
            consumer.close()
        return "ok"

    def attach(self) -> str:
        """A producer that stays."""
        self._producer = self._client.create_producer(self._topic)
        return "ok"

    def detach(self) -> str:
        self._producer.close()
        return "ok"

    def receive(self, name: str, seconds: float) -> int:
        """How many messages a new consumer gets in so many seconds."""
        consumer = self._client.subscribe(self._topic, name, self._pulsar.ConsumerType.Shared)
        until_s = time.monotonic() + seconds
        count = 0
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                consumer.receive(max(1, int(left_s * 1000)))
                count += 1
            except self._pulsar.Timeout:
                break
        self._consumers.setdefault(name, []).append(consumer)
        return count

    def subscribe_again(self, name: str, times: int) -> int:
        """How often the same consumer (of the same name and id) may subscribe, one time after the other."""
        allowed = 0
        for _ in range(times):
            logger = self._pulsar.FileLogger(self._pulsar.LoggerLevel.Error, os.devnull)
            client = self._pulsar.Client(self._service_url, operation_timeout_seconds=2, logger=logger)
            try:
                client.subscribe(self._topic, name, consumer_name="c")
                allowed += 1
            except self._pulsar.NotAllowedError as error:
                print(type(error).__name__, error, file=sys.stderr)
            client.close()
        return allowed

    def wait(self, seconds: int) -> None:
        time.sleep(seconds)  # noqa: TID251

    def expire(self, name: str, seconds: int) -> int:
        answer = self._admin.post(f"{self._roots['T']}/subscription/{name}/expireMessages/{seconds}")
        time.sleep(SETTLING_S)  # noqa: TID251
        return answer.status

    def expire_all(self, seconds: int) -> int:
        answer = self._admin.post(f"{self._roots['T']}/all_subscription/expireMessages/{seconds}")
        time.sleep(SETTLING_S)  # noqa: TID251
        return answer.status

    def expire_at(self, name: str, index: int, excluded: bool = False) -> int:
        body = place_of(self._admin.get(self._roots["T"] + "/internalStats").json(), index)
        path = f"{self._roots['T']}/subscription/{name}/expireMessages"
        answer = self._admin.post(path, {**body, "excluded": excluded} if excluded else body)
        print("expire_at", index, answer.status, answer.text[:300], file=sys.stderr)
        time.sleep(SETTLING_S)  # noqa: TID251
        return answer.status

    def truncate(self) -> int:
        answer = self._admin.delete(self._roots["T"] + "/truncate")
        if answer.status >= 400:
            print("truncate", answer.status, answer.text[:300], file=sys.stderr)
        return answer.status

    def terminate(self) -> int:
        return self._admin.post(self._roots["T"] + "/terminate").status

    def unload(self) -> int:
        return self._admin.put(self._roots["T"] + "/unload").status

    def stats(self) -> int:
        """The status of the topic's statistics: whether it is there."""
        return self._admin.get(self._roots["T"] + "/stats").status

    def shown(self, path: str) -> Any:
        answer = self._admin.get(self._roots[path[0]] + path[1:])
        return answer.json() if answer.body else None

    def entries(self) -> int:
        """In the topic, consumed or not."""
        return int(self._admin.get(self._roots["T"] + "/internalStats").json()["numberOfEntries"])

    def backlog(self, name: str) -> int:
        return self._admin.backlog(self._topic, name)

    def expired(self, name: str) -> int:
        return int(self._admin.subscription(self._topic, name)["totalMsgExpired"])


def play(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Step]]:
    """All at once. A case that breaks off is told by its thread, and has no answers here."""
    played: dict[str, list[Step]] = {}

    def run(number: int, name: str, steps: list[Step]) -> None:
        played[name] = RealBroker(service_url, web_url, number).play(steps)

    asked = cases()
    threads = [
        threading.Thread(target=run, args=(number, name, asked[name])) for number, name in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return played


def main(arguments: Sequence[str] | None = None) -> None:
    RECORDING.main(list(cases()), play, arguments)


if __name__ == "__main__":
    main()
