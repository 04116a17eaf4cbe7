"""The broker for the admin API: `admin.view.broker.BrokerView`, composed of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from geminga.broker.operator.clock import ClockOperator
from geminga.broker.operator.delayed_verify import DelayedVerifier
from geminga.broker.operator.delayed_view import DelayedOperator
from geminga.broker.operator.dynamic_configuration import DynamicConfiguration
from geminga.broker.operator.faults_view import FaultsOperator
from geminga.broker.operator.loaded_topics import LoadedTopics
from geminga.broker.operator.messages import MessagesOperator
from geminga.broker.operator.statistics import StatisticsOperator
from geminga.broker.operator.subscriptions import SubscriptionsOperator
from geminga.broker.operator.topics import TopicsOperator
from geminga.broker.policies.documents import Documents
from geminga.config.operator_token import NO_OPERATOR_TOKEN, OperatorToken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from geminga.broker.connection.connection import Connections
    from geminga.broker.flow.snapshot_reports import SnapshotCalls
    from geminga.broker.flow.statistics import BackupReport, DiskStatistics, MemoryStatistics
    from geminga.broker.operator.health import HealthReport
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topics import Topics
    from geminga.chaos.rules.faults import Faults
    from geminga.config.config import Config
    from geminga.events.event_log import EventLog


class Process(NamedTuple):
    """Queries and actions of the process as a whole: `admin.view.process.ProcessView`."""

    memory: Callable[[], MemoryStatistics]
    memory_in_slices: Callable[[], Generator[None, None, MemoryStatistics]]
    backup: Callable[[str], Awaitable[BackupReport]]
    health: Callable[[], Awaitable[HealthReport]]
    snapshots: Callable[[], SnapshotCalls]
    dropped_log_lines: Callable[[], int]
    operator_token: OperatorToken = NO_OPERATOR_TOKEN
    faults: Faults | None = None
    """None without `--chaos`."""
    disk: Callable[[], Awaitable[DiskStatistics]] | None = None
    """None: only where a test makes a view by itself."""
    events: EventLog | None = None
    """None: likewise."""


class View:
    """The parts of one broker; each route gets those that it needs."""

    def __init__(
        self,
        rooms: Rooms,
        topics: Topics,
        connections: Connections,
        config: Config,
        binary_port: int,
        web_port: int,
        process: Process,
        policies_of: Callable[[Config], EffectivePolicies],
    ) -> None:
        """`policies_of` returns a configuration's default policies for topics."""
        self.config = config
        self.binary_port = binary_port
        self.web_port = web_port
        self.namespaces = rooms.namespaces
        self.policies = rooms.policies
        self.documents = Documents(rooms.metadata)
        self.dynamic = DynamicConfiguration(config, self.documents, rooms.policies, policies_of)
        self.dynamic.follow()
        self.loaded = LoadedTopics(topics, rooms)
        self.schemas = topics.schemas
        self.topics = TopicsOperator(topics, rooms)
        self.subscriptions = SubscriptionsOperator(topics, rooms)
        self.messages = MessagesOperator(topics, rooms.clock, rooms.settings)
        self.statistics = StatisticsOperator(topics, rooms, connections)
        self.delayed = DelayedOperator(
            topics, allows_damage=config.chaos_enabled, verifier=DelayedVerifier(topics, rooms)
        )
        self.clock = ClockOperator(topics, rooms)
        self.faults = FaultsOperator(process.faults, topics, rooms.clock)
        self.process = process
