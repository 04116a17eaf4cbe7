"""All routes of port 8080 in one router."""

from __future__ import annotations

from geminga.admin.api.about import AboutRoutes
from geminga.admin.http.router import Router
from geminga.admin.routes.cluster.broker_stats import BrokerStatsRoutes
from geminga.admin.routes.cluster.brokers import BrokerRoutes
from geminga.admin.routes.cluster.clusters import ClusterRoutes
from geminga.admin.routes.cluster.resources import ResourceRoutes
from geminga.admin.routes.delayed import DelayedRoutes
from geminga.admin.routes.index import IndexRoutes
from geminga.admin.routes.lookup import LookupRoutes
from geminga.admin.routes.metrics import MetricsRoutes
from geminga.admin.routes.operator.backup import BackupRoutes
from geminga.admin.routes.operator.clock import ClockRoutes
from geminga.admin.routes.operator.events import EventRoutes
from geminga.admin.routes.operator.faults import FaultRoutes
from geminga.admin.routes.operator.snapshots import SnapshotRoutes
from geminga.admin.routes.partitions import PartitionRoutes
from geminga.admin.routes.policies import PolicyRoutes
from geminga.admin.routes.policies_quota import QuotaRoutes
from geminga.admin.routes.schemas import SchemaRoutes
from geminga.admin.routes.subscriptions import SubscriptionRoutes
from geminga.admin.routes.tenancy.namespace_actions import NamespaceActionRoutes
from geminga.admin.routes.tenancy.namespace_fields import NamespaceFieldRoutes
from geminga.admin.routes.tenancy.namespaces import NamespaceRoutes
from geminga.admin.routes.tenancy.tenants import TenantRoutes
from geminga.admin.routes.topic.clusters import TopicClusterRoutes
from geminga.admin.routes.topic.messages import MessageRoutes
from geminga.admin.routes.topic.non_persistent import NonPersistentRoutes
from geminga.admin.routes.topic.permissions import TopicPermissionRoutes
from geminga.admin.routes.topic.subscription_fields import SubscriptionFieldRoutes
from geminga.admin.routes.topic.upkeep import TopicUpkeepRoutes
from geminga.admin.routes.topics import TopicRoutes
from geminga.admin.view.broker import BrokerView


def router_for(view: BrokerView) -> Router:
    """A router that answers from this broker."""
    router = Router()
    IndexRoutes(view).add_to(router)
    BrokerRoutes(view, view.namespaces, view.process, view.dynamic).add_to(router)
    BrokerStatsRoutes(view, view.namespaces, view.statistics, view.process, view.loaded).add_to(router)
    ClusterRoutes(view, view.namespaces, view.documents).add_to(router)
    ResourceRoutes(view, view.namespaces, view.documents).add_to(router)
    TenantRoutes(view.namespaces).add_to(router)
    NamespaceRoutes(view.namespaces, view.topics).add_to(router)
    NamespaceFieldRoutes(view.namespaces, view.documents).add_to(router)
    NamespaceActionRoutes(view.namespaces, view.topics, view.subscriptions).add_to(router)
    TopicRoutes(view, view.namespaces, view.topics, view.statistics).add_to(router)
    TopicUpkeepRoutes(view.topics, view.statistics).add_to(router)
    MessageRoutes(view.topics, view.messages).add_to(router)
    NonPersistentRoutes(view.namespaces).add_to(router)
    PartitionRoutes(view, view.namespaces, view.topics, view.statistics).add_to(router)
    PolicyRoutes(view.namespaces, view.policies, view.topics).add_to(router)
    QuotaRoutes(view.namespaces, view.policies, view.topics).add_to(router)
    SchemaRoutes(view.namespaces, view.policies, view.schemas).add_to(router)
    SubscriptionRoutes(view.topics, view.subscriptions).add_to(router)
    SubscriptionFieldRoutes(view.namespaces, view.policies, view.topics, view.subscriptions).add_to(router)
    TopicPermissionRoutes(view.namespaces, view.topics).add_to(router)
    TopicClusterRoutes(view.namespaces, view.policies, view.topics).add_to(router)
    LookupRoutes(view, view.namespaces, view.topics).add_to(router)
    MetricsRoutes(view, view.statistics, view.process, view.faults).add_to(router)
    DelayedRoutes(view.delayed, view.process).add_to(router)
    ClockRoutes(view.clock, view.process).add_to(router)
    BackupRoutes(view.process).add_to(router)
    SnapshotRoutes(view.process).add_to(router)
    FaultRoutes(view.faults, view.process).add_to(router)
    EventRoutes(view.process).add_to(router)
    AboutRoutes(router).add_to(router)
    return router
