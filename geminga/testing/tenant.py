"""A tenant of its own for one test, and what the test may do to its topics and to the clock."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from geminga.client.admin import delayed_path, topic_path
from geminga.names import TopicName
from geminga.testing.requests import Refused, ask, ask_bytes
from geminga.units import duration_ms, time_ms

LOOK_S: Final = 0.01
WAIT_SECONDS: Final = 30.0
DELAYED_SHOWN: Final = 20
SHOWN: Final = "%Y-%m-%d %H:%M:%S"
EVENTS_SHOWN: Final = 40


class Served(Protocol):
    """A broker that runs."""

    @property
    def service_url(self) -> str: ...

    @property
    def web_url(self) -> str: ...

    @property
    def log(self) -> str: ...


class Peeked(NamedTuple):
    """A stored message that was looked at; nothing about it has changed."""

    message_id: str
    data: bytes
    properties: dict[str, str]


class NotDelivered(AssertionError):
    """What was published and is not acknowledged, by subscription."""


class Tenant:
    """Made by the fixture `geminga_tenant`. Topics are named in full, or by their last part (`"orders"`)."""

    def __init__(self, broker: Served, name: str) -> None:
        self._broker = broker
        self.name = name
        self.namespace = f"{name}/default"
        self._rules: list[str] = []
        [cluster] = self._ask("GET", "/admin/v2/clusters")
        self._ask("PUT", f"/admin/v2/tenants/{name}", {"adminRoles": [], "allowedClusters": [cluster]})
        self._ask("PUT", f"/admin/v2/namespaces/{self.namespace}", {})
        last = self._ask("GET", "/geminga/events?limit=1")
        self._first_event: int = last[-1]["sequence"] if last else 0

    def close(self) -> None:
        """Clear the faults of this test and delete its topics, connected clients or not."""
        for rule in self._rules:
            self._quietly("DELETE", f"/geminga/faults/rules/{rule}")
        # One by one: a namespace with topics in it is not deleted, as on Pulsar.
        for path in self._topic_paths():
            self._quietly("DELETE", f"{path}?force=true")
        self._quietly("DELETE", f"/admin/v2/namespaces/{self.namespace}")
        self._quietly("DELETE", f"/admin/v2/tenants/{self.name}")

    # -- addresses -------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`, for clients."""
        return self._broker.service_url

    @property
    def web_url(self) -> str:
        """`http://host:port`, for the admin API and metrics."""
        return self._broker.web_url

    def topic(self, name: str) -> str:
        """The full name of a topic of this test."""
        return name if "://" in name else f"persistent://{self.namespace}/{name}"

    @property
    def log(self) -> str:
        """What the broker has written to standard error so far."""
        return self._broker.log

    # -- time ------------------------------------------------------------------------------------------------

    def now(self) -> datetime.datetime:
        """What the broker's clock shows, in UTC."""
        shown_ms = self._ask("GET", "/geminga/clock")["now_ms"]
        return datetime.datetime.fromtimestamp(shown_ms / 1000, datetime.UTC)

    def advance(
        self,
        length: str | float | datetime.timedelta,
        *,
        until_acknowledged: bool = False,
        timeout_s: float = WAIT_SECONDS,
    ) -> Mapping[str, Any]:
        """Move the clock. On return all that fell due has happened, in due order, and each due message is
        with its consumer, or waits for one. With `until_acknowledged` consumers acknowledge what they get at
        one due time before the clock goes on to the next. Raises `NotDelivered` if they did not within
        `timeout_s`; the clock has been moved then.
        """
        return self._move({"ms": duration_ms(length)}, until_acknowledged, timeout_s)

    def advance_to(
        self, moment: datetime.datetime, *, until_acknowledged: bool = False, timeout_s: float = WAIT_SECONDS
    ) -> Mapping[str, Any]:
        """As `advance`, to a moment with a time zone. Raises `ValueError` for one in the past."""
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone")
        if moment < (now := self.now()):
            raise ValueError(
                f"{moment} is in the past: the broker's clock shows {now:{SHOWN}} UTC and never goes back. "
                "Count from geminga_tenant.now(), not from the machine's clock"
            )
        return self._move({"to_ms": round(moment.timestamp() * 1000)}, until_acknowledged, timeout_s)

    def advance_to_next(
        self, *, until_acknowledged: bool = False, timeout_s: float = WAIT_SECONDS
    ) -> Mapping[str, Any]:
        """To when the next delayed message is due, a TTL ends or something unused is deleted; the answer's
        `event` says which. `Refused`: nothing of that lies ahead.
        """
        return self._move({"next": True}, until_acknowledged, timeout_s)

    def _move(
        self, where: Mapping[str, object], until_acknowledged: bool, timeout_s: float
    ) -> Mapping[str, Any]:
        wait = "acknowledged" if until_acknowledged else "dispatched"
        moved: Mapping[str, Any] = self._ask(
            "POST", "/geminga/clock", {**where, "wait": wait, "wait_seconds": timeout_s}
        )
        if moved["unacknowledged"]:
            raise NotDelivered(
                f"the clock was moved, but not acknowledged within {timeout_s} s of a due time: "
                f"{', '.join(moved['unacknowledged'])}"
            )
        return moved

    # -- faults ----------------------------------------------------------------------------------------------

    def lose_bucket(self, topic: str, subscription: str, ledger_id: int | None = None) -> Mapping[str, Any]:
        """Delete a bucket of the delayed index, the first one if no ledger is named, and have the broker
        rebuild it. `Refused`: there is none, in no partition either.
        """
        body = {} if ledger_id is None else {"ledgerId": ledger_id}
        *others, last = self._parts(topic)
        for part in others:
            with contextlib.suppress(Refused):
                return self._lose_bucket(part, subscription, body)
        return self._lose_bucket(last, subscription, body)

    def _lose_bucket(self, part: TopicName, subscription: str, body: object) -> Mapping[str, Any]:
        lost: Mapping[str, Any] = self._ask("POST", f"{delayed_path(part, subscription)}/lose-bucket", body)
        return lost

    def set_fault(self, **rule: object) -> str:
        """Put a rule in force until it has ended or the test has; its id. docs/faults.md lists places, kinds
        and fields; `latency_ms` here is `latencyMs` there. Raises `Refused` with what is wrong with it.
        """
        fields = {_camel_case(name): value for name, value in rule.items()}
        made: str = self._ask("POST", "/geminga/faults", fields)["rule"]["id"]
        self._rules.append(made)
        return made

    def clear_fault(self, rule: str) -> None:
        self._ask("DELETE", f"/geminga/faults/rules/{rule}")
        self._rules.remove(rule)

    # -- looking ---------------------------------------------------------------------------------------------

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Pulsar's statistics of a topic; those of a partitioned one are its partitions' together."""
        name = self._name(topic)
        kind = "partitioned-stats" if self._partitions(name) else "stats"
        found: Mapping[str, Any] = self._ask("GET", f"{topic_path(name)}/{kind}")
        return found

    def topics(self) -> list[str]:
        """Full names of the topics of this test; each partition is one."""
        return sorted(self._ask("GET", f"/admin/v2/persistent/{self.namespace}"))

    def peek(self, topic: str, subscription: str, count: int = 1) -> list[Peeked]:
        """Up to so many entries of the backlog, delayed ones too. Nothing is delivered or acknowledged. An
        entry of a batch comes as its first message, and partitions come one after another.
        """
        each = (self._peeked(part, subscription) for part in self._parts(topic))
        return list(itertools.islice(itertools.chain.from_iterable(each), count))

    def _peeked(self, part: TopicName, subscription: str) -> Iterator[Peeked]:
        path = f"{topic_path(part)}/subscription/{quote(subscription, safe='')}/position"
        for number in itertools.count(1):
            try:
                headers, body = ask_bytes(self.web_url, f"{path}/{number}")
            except Refused:
                return
            properties = json.loads(headers["x-pulsar-property"])
            yield Peeked(headers["x-pulsar-message-id"], body, properties)

    def drain(self, timeout_s: float = WAIT_SECONDS) -> None:
        """Wait until all that may be delivered now is acknowledged, on all subscriptions of this test's
        topics; messages that are not due yet do not count. Raises `NotDelivered`.
        """
        self._until_nothing(self._undelivered, timeout_s)

    def assert_delivered(self, topic: str, subscription: str, timeout_s: float = 5.0) -> None:
        """All that was published, delayed or not, is acknowledged. Raises `NotDelivered`, which says what
        waits, and for what.
        """
        name = self.topic(topic)
        self._until_nothing(lambda: self._unacknowledged(name, subscription), timeout_s)

    def _until_nothing(self, look: Callable[[], str], timeout_s: float) -> None:
        # By a timer, since a library may have stopped the clocks that this process reads.
        over = threading.Event()
        timer = threading.Timer(timeout_s, over.set)
        timer.daemon = True
        timer.start()
        try:
            while waits := look():
                if over.wait(LOOK_S):
                    raise NotDelivered(f"not within {timeout_s} s: {waits}")
        finally:
            timer.cancel()

    def _undelivered(self) -> str:
        return "; ".join(
            f"{topic} / {name}: {waits} entries are not acknowledged"
            for topic in self.topics()
            for name, found in self.stats(topic)["subscriptions"].items()
            if (waits := found["msgBacklog"] - found["msgDelayed"]) > 0 or found["unackedMessages"]
        )

    def _unacknowledged(self, topic: str, name: str) -> str:
        found = self.stats(topic)["subscriptions"].get(name)
        if found is None:
            raise NotDelivered(f"{topic} has no subscription {name!r}")
        if not found["msgBacklog"]:
            return ""
        return (
            f"{topic} / {name}: {found['msgBacklog']} entries are not acknowledged: "
            f"{found['msgDelayed']} not due yet, {found['unackedMessages']} with {len(found['consumers'])} "
            f"consumers{self._delayed_text(topic, name)}"
        )

    # -- what a failed test shows ----------------------------------------------------------------------------

    def report(self) -> str:
        """Statistics, delayed messages, faults and events of this test."""
        lines = [f"clock {self.now():{SHOWN}} UTC"]
        for topic in self.topics():
            stats = self.stats(topic)
            lines.append(f"{topic}: {stats['msgInCounter']} messages in")
            lines += [
                f"  {name} ({found['type']}): backlog {found['msgBacklog']}, delayed {found['msgDelayed']}, "
                f"unacknowledged {found['unackedMessages']}, consumers {len(found['consumers'])}"
                f"{self._delayed_text(topic, name)}"
                for name, found in stats["subscriptions"].items()
            ]
        with contextlib.suppress(Refused):  # a broker that runs already may allow no faults
            lines += [f"fault {rule}" for rule in self._ask("GET", "/geminga/faults")]
        for event in self.events()[-EVENTS_SHOWN:]:
            about = {
                name: event[name] for name in ("topic", "subscription", "bucket", "text") if name in event
            }
            lines.append(f"event {event['sequence']} {event['kind']} {about} {event.get('counts', {})}")
        return "\n".join(lines)

    def events(self) -> list[Mapping[str, Any]]:
        """What happened to topics of this test, and to the whole broker since the test began, in order: see
        docs/events.md.
        """
        prefix = f"persistent://{self.namespace}/"
        found = self._ask("GET", f"/geminga/events?since={self._first_event}")
        return [event for event in found if event.get("topic", prefix).startswith(prefix)]

    def _topic_paths(self) -> list[str]:
        try:
            partitioned = self._ask("GET", f"/admin/v2/persistent/{self.namespace}/partitioned")
            paths = [f"{topic_path(TopicName.parse(name))}/partitions" for name in partitioned]
            return paths + [
                topic_path(name) for name in map(TopicName.parse, self.topics()) if name.partition_index < 0
            ]
        except (Refused, OSError):
            return []

    def _delayed_text(self, topic: str, subscription: str) -> str:
        """The first messages that wait for their time, and when they are due."""
        each = (self._delayed(part, subscription) for part in self._parts(topic))
        return "".join(
            f"\n    {m['ledgerId']}:{m['entryId']} is due {due:{SHOWN}}{self._asked_text(part, m, due)}"
            for part, m in itertools.islice(itertools.chain.from_iterable(each), DELAYED_SHOWN)
            for due in [datetime.datetime.fromtimestamp(m["dueMs"] / 1000, datetime.UTC)]
        )

    def _delayed(self, part: TopicName, subscription: str) -> Iterator[tuple[TopicName, Mapping[str, Any]]]:
        path = f"{delayed_path(part, subscription)}/messages?limit={DELAYED_SHOWN}"
        with contextlib.suppress(Refused):
            yield from ((part, message) for message in self._ask("GET", path)["messages"])

    def _asked_text(self, part: TopicName, message: Mapping[str, Any], due: datetime.datetime) -> str:
        """What the producer asked for, where its clock and the broker's say different things of that."""
        entry = f"{topic_path(part)}/ledger/{message['ledgerId']}/entry/{message['entryId']}"
        try:
            headers, _ = ask_bytes(self.web_url, entry)
            asked, published, stamped = (
                datetime.datetime.fromtimestamp(time_ms(headers[f"x-pulsar-{name}"]) / 1000, datetime.UTC)
                for name in ("deliver-at-time", "publish-time", "broker-entry-metadata-timestamp")
            )
        except (Refused, KeyError):
            return ""
        if due == asked and due - stamped != asked - published:
            return (
                f": deliver_at asked for it, as a moment of the broker's clock {due - stamped} later; by the "
                f"producer's own clock it is {asked - published} after it was published"
            )
        if due == asked or due - stamped != asked - published:
            return ""
        return (
            f": deliver_at asked for {asked:{SHOWN}}, by the producer's own clock {asked - published} "
            "after it was published, so it is due so long after that by the broker's"
        )

    def _name(self, topic: str) -> TopicName:
        return TopicName.parse(self.topic(topic))

    def _partitions(self, name: TopicName) -> int:
        """0: it is not partitioned, or is a partition."""
        if name.is_partition:
            return 0
        found: int = self._ask("GET", f"{topic_path(name)}/partitions")["partitions"]
        return found

    def _parts(self, topic: str) -> Sequence[TopicName]:
        """The partitions of a partitioned topic, else the topic."""
        name = self._name(topic)
        return [name.partition(index) for index in range(self._partitions(name))] or [name]

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return ask(self.web_url, method, path, body)

    def _quietly(self, method: str, path: str) -> None:
        try:
            self._ask(method, path)
        except (Refused, OSError):
            pass  # the broker may have been killed by the test; the session's end says so


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
