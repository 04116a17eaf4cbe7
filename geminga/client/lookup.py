"""Finds the broker that serves a topic: repeats LOOKUP at each broker that an answer names."""

from __future__ import annotations

from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

REDIRECTS_MAX = 20
"""As many redirections as the Java client follows."""


class Lookup:
    """The lookup of one topic. Send requests to the broker at `url`, until `hear` returns the one that
    serves the topic; at most `REDIRECTS_MAX` times.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.url: str | None = None
        """The broker for the next request; None: any."""
        self._is_authoritative = False

    def request(self, request_id: int) -> bytes:
        return client_commands.lookup(request_id, self.topic, authoritative=self._is_authoritative)

    def hear(self, answer: pb.CommandLookupTopicResponse, asked_url: str) -> str | None:
        """The URL of the broker that serves the topic; None: send another request. Returns `asked_url`
        itself if that broker serves the topic or is a proxy for the one that does. A connection with TLS
        keeps TLS.
        """
        is_encrypted = asked_url.partition("://")[0] == "pulsar+ssl"
        target = answer.brokerServiceUrlTls if is_encrypted else answer.brokerServiceUrl
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            is_here = answer.proxy_through_service_url or not target or target.rstrip("/") == asked_url
            return asked_url if is_here else target
        self.url = target or None
        self._is_authoritative = answer.authoritative
        return None

    @property
    def endless(self) -> str:
        """The text for users once `REDIRECTS_MAX` is reached."""
        return f"{self.topic}: brokers refer to each other {REDIRECTS_MAX} times; none of them serves it"
