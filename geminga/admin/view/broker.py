"""The broker as the admin API sees it: its parts, and what it is configured as.

`api/table.py` hands each class of routes the parts that it needs; no route has all of them. Topics and
subscriptions stay unknown to the routes; `geminga.broker.operator.view` implements the parts on them.
"""

from __future__ import annotations

from typing import Protocol

from geminga.admin.view.clock import ClockView
from geminga.admin.view.delayed import DelayedView
from geminga.admin.view.faults import FaultsView
from geminga.admin.view.messages import MessagesView
from geminga.admin.view.process import ProcessView
from geminga.admin.view.statistics import StatisticsView
from geminga.admin.view.subscriptions import SubscriptionsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.operator.dynamic_configuration import DynamicConfiguration
from geminga.broker.operator.loaded_topics import LoadedTopics
from geminga.broker.policies.documents import Documents
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.schemas.registry import SchemaRegistry
from geminga.config.config import Config


class BrokerIdentity(Protocol):
    """How the broker is configured, and the ports that it listens on."""

    config: Config
    binary_port: int
    web_port: int


class BrokerView(BrokerIdentity, Protocol):
    """One broker, by its parts. Plain calls of a part answer from memory or the metadata store; async ones
    may wait for a disk.
    """

    namespaces: Namespaces
    policies: Policies
    documents: Documents
    dynamic: DynamicConfiguration
    loaded: LoadedTopics
    schemas: SchemaRegistry

    @property
    def topics(self) -> TopicsView: ...

    @property
    def subscriptions(self) -> SubscriptionsView: ...

    @property
    def messages(self) -> MessagesView: ...

    @property
    def statistics(self) -> StatisticsView: ...

    @property
    def delayed(self) -> DelayedView: ...

    @property
    def clock(self) -> ClockView: ...

    @property
    def faults(self) -> FaultsView: ...

    @property
    def process(self) -> ProcessView: ...
