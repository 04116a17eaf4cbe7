"""Names out of a request's path, checked."""

from __future__ import annotations

from geminga.admin.http.router import Request
from geminga.errors import InvalidName
from geminga.names import NamespaceName, TopicDomain, TopicName, check_subscription


def namespace_of(request: Request) -> NamespaceName:
    try:
        return NamespaceName(request.parameters["tenant"], request.parameters["namespace"])
    except InvalidName:
        raise InvalidName("Namespace name is not valid") from None


def topic_of(request: Request, domain: TopicDomain = TopicDomain.PERSISTENT) -> TopicName:
    return TopicName(domain, namespace_of(request), request.parameters["topic"])


def subscription_of(request: Request) -> str:
    return check_subscription(request.parameters["subscription"])
