"""What is done to all topics of a namespace, or of one bundle: unload, clear a backlog, unsubscribe."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from itertools import chain

import msgspec

from geminga.admin.http.router import NO_CONTENT, BadRequest, Request, Response, Router, streamed_json
from geminga.admin.http.streaming import in_parts, json_object
from geminga.admin.routes.effect import without_effect
from geminga.admin.routes.names import namespace_of
from geminga.admin.view.subscriptions import SubscriptionsView
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import Pace, for_each, matching
from geminga.broker.policies.bundles import bundle_range, split, topic_hash
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import ConsumerBusy, NotAllowed, SubscriptionNotFound, TopicNotFound
from geminga.names import NamespaceName, TopicName, check_subscription

PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
BUNDLE = f"{PATH}/{{bundle}}"


class NamespaceActionRoutes:
    """Some topics at a time; one that goes meanwhile is passed over."""

    def __init__(self, namespaces: Namespaces, topics: TopicsView, subscriptions: SubscriptionsView) -> None:
        self._namespaces = namespaces
        self._topics = topics
        self._subscriptions = subscriptions

    def add_to(self, router: Router) -> None:
        for path in (PATH, BUNDLE):
            router.add("PUT", f"{path}/unload", self.unload, walks="topics", joins=True)
            router.add("POST", f"{path}/clearBacklog", self.clear_backlog, walks="topics", joins=True)
            router.add(
                "POST",
                f"{path}/clearBacklog/{{subscription}}",
                self.clear_backlog,
                walks="topics",
                joins=True,
            )
            router.add(
                "POST", f"{path}/unsubscribe/{{subscription}}", self.unsubscribe, walks="topics", joins=True
            )
        router.add("PUT", f"{BUNDLE}/split", self.split, walks="topics")
        router.add("GET", f"{BUNDLE}/topicHashPositions", self.hash_positions, walks="topics")
        router.add("DELETE", BUNDLE, self.delete_bundle, walks="topics")
        router.add("GET", f"{PATH}/scanOffloadedLedgers", self.offloaded)

    async def _names(self, request: Request) -> list[str]:
        """Of the bundle in the path, if there is one. Raises `NamespaceNotFound`, `InvalidName`."""
        name = namespace_of(request)
        self._namespaces.record(name)
        low, high = self._range(name, request)
        return await matching(
            await self._topics.names_in(name), lambda topic: low <= topic_hash(topic) < high
        )

    async def _topics_of(self, request: Request, work: Callable[[TopicName], Awaitable[None]]) -> None:
        """Work on the topics of `_names` that are there."""

        async def work_if_there(text: str) -> None:
            topic = TopicName.parse(text)
            if self._topics.exists(topic):
                with contextlib.suppress(TopicNotFound):
                    await work(topic)

        await for_each(await self._names(request), work_if_there)

    def _range(self, name: NamespaceName, request: Request) -> tuple[int, int]:
        bundle = request.parameters.get("bundle")
        if bundle is None:
            return 0, 2**32
        return bundle_range(name, bundle, self._namespaces.policies(name)["bundles"]["boundaries"])

    async def unload(self, request: Request) -> Response:
        await self._topics_of(request, self._topics.unload)
        return NO_CONTENT

    async def clear_backlog(self, request: Request) -> Response:
        wanted = request.parameters.get("subscription")

        async def clear(topic: TopicName) -> None:
            pace = Pace()
            for name in await self._subscriptions.names(topic):
                if wanted in (None, name):
                    with contextlib.suppress(SubscriptionNotFound):
                        await self._subscriptions.skip(topic, name, None)
                    await pace.turn()

        await self._topics_of(request, clear)
        return NO_CONTENT

    async def unsubscribe(self, request: Request) -> Response:
        """`ConsumerBusy` if one of the topics has a consumer on it; the others have lost it by then. As in
        Pulsar, `__compaction` is a name like others here: all topics give up what is kept for compaction.
        """
        name = check_subscription(request.parameters["subscription"])
        busy: list[str] = []

        async def delete_from(topic: TopicName) -> None:
            try:
                if await self._subscriptions.has(topic, name):
                    await self._subscriptions.delete(topic, name, force=False)
            except SubscriptionNotFound:
                pass
            except ConsumerBusy:
                busy.append(str(topic))

        await self._topics_of(request, delete_from)
        if busy:
            raise ConsumerBusy(
                f"Subscription {name} has active connected consumers on {', '.join(sorted(busy)[:10])}"
            )
        return NO_CONTENT

    async def split(self, request: Request) -> Response:
        """Shown from now on; all bundles are served by one process."""
        body = request.json()
        if body is not None and not isinstance(body, list):
            raise BadRequest("expected a list of split points")
        name = namespace_of(request)
        low, high = self._range(name, request)
        old = self._namespaces.policies(name)["bundles"]["boundaries"]
        boundaries = split(old, low, high)
        bundles = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
        await self._namespaces.change_policies(name, lambda policies: {**policies, "bundles": bundles})
        return without_effect("the split of a bundle")

    async def hash_positions(self, request: Request) -> Response:
        wanted = {text.strip() for text in request.query.get("topics", "").split(",")} - {""}
        names = await matching(await self._names(request), lambda topic: not wanted or topic in wanted)
        head = {"namespace": str(namespace_of(request)), "bundle": request.parameters["bundle"]}
        before = msgspec.json.encode(head)[:-1] + b',"topicHashPositions":'
        fields = (msgspec.json.encode(name) + b":%d" % topic_hash(name) for name in names)
        return streamed_json(in_parts(chain((before,), json_object(fields), (b"}",))))

    async def delete_bundle(self, request: Request) -> Response:
        if await self._names(request):
            raise BadRequest("Cannot delete non empty bundle")
        return without_effect("the deletion of a bundle")

    async def offloaded(self, request: Request) -> Response:
        self._namespaces.record(namespace_of(request))
        raise NotAllowed("nothing is offloaded: this broker keeps all ledgers on its own disks")
