"""How this broker is called in answers: by the address that clients were told, else by the one they used."""

from __future__ import annotations

from geminga.admin.view.broker import BrokerIdentity


class Addresses:
    """The addresses for one request, which came in on `local_host`."""

    def __init__(self, broker: BrokerIdentity, local_host: str) -> None:
        host = broker.config.advertised_address or local_host
        self._host = f"[{host}]" if ":" in host else host
        self._broker = broker

    @property
    def binary(self) -> str:
        return f"pulsar://{self._host}:{self._broker.binary_port}"

    @property
    def web(self) -> str:
        return f"http://{self.broker}"

    def is_broker(self, name: str) -> bool:
        """Whether this is a `host:port` of the broker: its id, or another of its addresses."""
        host, _, port = name.rpartition(":")
        listed = self._broker.config.geminga_web_service_host_names
        hosts = {self._host, *listed, "localhost", "127.0.0.1", "[::1]"}
        return port == str(self._broker.web_port) and host.lower() in hosts

    @property
    def broker(self) -> str:
        """Pulsar's id of a broker: host and port of its admin API."""
        return f"{self._host}:{self._broker.web_port}"
