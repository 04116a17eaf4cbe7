"""What a subscription has beside its cursor: properties, and whether it is replicated."""

from __future__ import annotations

from geminga.admin.http.router import NO_CONTENT, BadRequest, Request, Response, Router, json_response
from geminga.admin.routes.effect import without_effect
from geminga.admin.routes.names import subscription_of, topic_of
from geminga.admin.routes.policies import is_global_of, policy_topic_of
from geminga.admin.routes.subscriptions import parts_with
from geminga.admin.routes.topic.messages import SUBSCRIPTION
from geminga.admin.routes.topics import TOPIC, properties_of
from geminga.admin.view.subscriptions import SubscriptionsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import for_each
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.policies.values import DispatchRate, read, shown
from geminga.names import TopicName


class SubscriptionFieldRoutes:
    """Of a partitioned topic those of all partitions, which are set together."""

    def __init__(
        self,
        namespaces: Namespaces,
        policies: Policies,
        topics: TopicsView,
        subscriptions: SubscriptionsView,
    ) -> None:
        self._namespaces = namespaces
        self._policies = policies
        self._topics = topics
        self._subscriptions = subscriptions

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{SUBSCRIPTION}/properties", self.properties, walks="partitions")
        router.add("PUT", f"{SUBSCRIPTION}/properties", self.set_properties, walks="partitions")
        router.add("GET", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", self.replicated, walks="partitions")
        router.add(
            "POST", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", self.set_replicated, walks="partitions"
        )
        router.add("GET", f"{TOPIC}/{{subscription}}/dispatchRate", self.rate)
        router.add("POST", f"{TOPIC}/{{subscription}}/dispatchRate", self.set_rate, walks="partitions")
        router.add("DELETE", f"{TOPIC}/{{subscription}}/dispatchRate", self.remove_rate, walks="partitions")

    async def _parts(self, request: Request) -> list[TopicName]:
        """Those that have the subscription. Raises `SubscriptionNotFound` if none has."""
        return await parts_with(
            self._topics, self._subscriptions, topic_of(request), subscription_of(request)
        )

    async def properties(self, request: Request) -> Response:
        parts = await self._parts(request)
        return json_response(await self._subscriptions.properties(parts[0], subscription_of(request)))

    async def set_properties(self, request: Request) -> Response:
        """In place of those that are there."""
        name, properties = subscription_of(request), properties_of(request.json())
        parts = await self._parts(request)
        await for_each(parts, lambda part: self._subscriptions.set_properties(part, name, properties))
        return NO_CONTENT

    async def replicated(self, request: Request) -> Response:
        name = subscription_of(request)
        found = dict.fromkeys(map(str, parts := await self._parts(request)), False)

        async def look(part: TopicName) -> None:
            found[str(part)] = await self._subscriptions.is_replicated(part, name)

        await for_each(parts, look)
        return json_response(found)

    async def set_replicated(self, request: Request) -> Response:
        if not request.body.strip():
            raise BadRequest("The request entity cannot be empty.")
        is_replicated = bool(read(bool, request.json()))
        name = subscription_of(request)
        parts = await self._parts(request)
        await for_each(parts, lambda part: self._subscriptions.set_replicated(part, name, is_replicated))
        return without_effect("the replication of a subscription") if is_replicated else NO_CONTENT

    # -- a rate of its own -----------------------------------------------------------------------------------

    async def rate(self, request: Request) -> Response:
        """What was set for the subscription itself; with `applied` what holds for it."""
        topic = policy_topic_of(self._namespaces, self._topics, request)
        effective = self._policies.applied(topic, is_global=is_global_of(request))
        found = effective.subscription_rates.get(subscription_of(request))
        if found is None and request.flag("applied"):
            found = effective.subscription_dispatch_rate
        return Response(200) if found is None else json_response(shown(found))

    async def set_rate(self, request: Request) -> Response:
        body = request.json()
        rate = None if body is None else read(DispatchRate, body)
        topic = policy_topic_of(self._namespaces, self._topics, request)
        await self._policies.set_subscription_rate(
            topic, subscription_of(request), rate, is_global=is_global_of(request)
        )
        return NO_CONTENT

    async def remove_rate(self, request: Request) -> Response:
        topic = policy_topic_of(self._namespaces, self._topics, request)
        await self._policies.set_subscription_rate(
            topic, subscription_of(request), None, is_global=is_global_of(request)
        )
        return NO_CONTENT
