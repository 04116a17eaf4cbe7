"""Lookup over HTTP, for clients whose service URL begins with http."""

from __future__ import annotations

from geminga.admin.http.router import Request, Response, Router, json_response, text_response
from geminga.admin.routes.addresses import Addresses
from geminga.admin.routes.names import topic_of
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.topics import TopicsView
from geminga.broker.policies.bundles import WHOLE_RANGE, bundle_of
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import InvalidName, NamespaceNotFound, TopicNotFound
from geminga.names import TopicDomain, TopicName

LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"


class LookupRoutes:
    def __init__(self, broker: BrokerIdentity, namespaces: Namespaces, topics: TopicsView) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._topics = topics

    def add_to(self, router: Router) -> None:
        router.add("GET", LOOKUP, self.lookup)
        router.add("GET", f"{LOOKUP}/bundle", self.bundle)

    async def lookup(self, request: Request) -> Response:
        topic = _topic(request)
        try:
            self._namespaces.check_exists(topic.namespace)
        except NamespaceNotFound:
            raise NamespaceNotFound("Namespace not found") from None
        if not self._topics.partitions(topic) and not self._topics.may_be_created(topic):
            raise TopicNotFound(f"Topic not found {topic}")
        addresses = Addresses(self._broker, request.local_host)
        return json_response(
            {
                "brokerUrl": addresses.binary,
                "httpUrl": addresses.web,
                "nativeUrl": addresses.binary,
                "brokerUrlSsl": "",
            }
        )

    async def bundle(self, request: Request) -> Response:
        return text_response(self._bundle(_topic(request)), "application/json")

    def _bundle(self, topic: TopicName) -> str:
        """The part of its namespace's hash range that holds a topic."""
        try:
            boundaries = self._namespaces.policies(topic.namespace)["bundles"]["boundaries"]
        except NamespaceNotFound:
            return WHOLE_RANGE
        return bundle_of(str(topic), boundaries)


def _topic(request: Request) -> TopicName:
    try:
        domain = TopicDomain(request.parameters["domain"])
    except ValueError:
        raise InvalidName("a topic's domain is persistent or non-persistent") from None
    return topic_of(request, domain)
