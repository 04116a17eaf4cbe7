"""Options with the prefixes pulsar.client., pulsar.admin., pulsar.reader. and pulsar.producer., named after
fields of the Java client's configuration. Each has an effect here, is refused with the reason, or only tunes
the Java client, which causes a warning. None is ignored silently.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

from geminga.pipeline.errors import SERVICE_URL, TOPICS_PATTERN, Access, BadOption, Option

CLIENT, ADMIN, READER, PRODUCER = PREFIXES = (
    "pulsar.client.",
    "pulsar.admin.",
    "pulsar.reader.",
    "pulsar.producer.",
)

_CONNECTION_USED = (
    "authPluginClassName authParams authParamMap tlsTrustCertsFilePath tlsAllowInsecureConnection "
    "tlsHostnameVerificationEnable tlsCertificateFilePath tlsKeyFilePath useTls"
)
_CONNECTION_TUNING = (
    "operationTimeoutMs lookupTimeoutMs connectionTimeoutMs requestTimeoutMs readTimeoutMs "
    "autoCertRefreshSeconds numIoThreads numListenerThreads connectionsPerBroker connectionMaxIdleSeconds "
    "useTcpNoDelay concurrentLookupRequest maxLookupRequest maxLookupRedirects "
    "maxNumberOfRejectedRequestPerConnection "
    "keepAliveIntervalSeconds statsIntervalSeconds initialBackoffIntervalNanos maxBackoffIntervalNanos "
    "memoryLimitBytes memoryLimit enableBusyWait enableTransaction description dnsLookupBindAddress "
    "dnsLookupBindPort tracingMode useKeyStoreTls"
)
_READER_TUNING = (
    "receiverQueueSize readerName poolMessages resetIncludeHead maxPendingChunkedMessage "
    "autoAckOldestChunkedMessageOnQueueFull expireTimeOfIncompleteChunkedMessageMillis "
    "expireTimeOfIncompleteChunkedMessage autoUpdatePartitions autoUpdatePartitionsInterval"
)
_PRODUCER_TUNING = (
    "batchingMaxPublishDelayMicros batchingMaxBytes batchingPartitionSwitchFrequencyByPublishDelay "
    "maxPendingMessagesAcrossPartitions autoUpdatePartitions autoUpdatePartitionsIntervalSeconds multiSchema "
    "lazyStartPartitionedProducers properties"
)
_USED = {
    CLIENT: f"{_CONNECTION_USED} memoryLimitBytes",
    ADMIN: _CONNECTION_USED,
    READER: "privateKeyPath publicKeyPath subscriptionName subscriptionRolePrefix cryptoFailureAction "
    "readCompacted",
    PRODUCER: "producerName sendTimeoutMs maxPendingMessages batchingEnabled batchingMaxMessages "
    "compressionType hashingScheme messageRoutingMode chunkingEnabled accessMode blockIfQueueFull",
}
_TUNING = {
    CLIENT: _CONNECTION_TUNING,
    ADMIN: _CONNECTION_TUNING,
    READER: _READER_TUNING,
    PRODUCER: _PRODUCER_TUNING,
}
_NAMES_TOPICS = ("topics are named by topic, topics and ", TOPICS_PATTERN)
_REFUSED: dict[str, str | tuple[str | Option, ...]] = {
    "serviceurl": ("the broker is named by ", SERVICE_URL),
    "listenername": ("choose the listener by the address in ", SERVICE_URL),
    "topicname": _NAMES_TOPICS,
    "topicnames": _NAMES_TOPICS,
    "startmessageid": "say where to begin with startingOffsets",
    "startmessagefromrollbackdurationinsec": "say where to begin with startingTime",
    "encryptionkeys": "messages are not encrypted here",
    "cryptokeyreader": "keys for reading are pulsar.reader.privateKeyPath; messages are not encrypted here",
    "initialsequenceid": "sequence ids are made of micro batch and row, see exactlyOnce",
    "tlstruststorepath": "give PEM files, tlsTrustCertsFilePath",
    "tlskeystorepath": "give PEM files, tlsCertificateFilePath and tlsKeyFilePath",
}


class OptionWithoutEffect(UserWarning):
    """An option that tunes the Java client, or tasks where there is only one."""


class Settings:
    """The options of one prefix, by their names in lower case."""

    def __init__(self, prefix: str, options: Mapping[str, str]) -> None:
        """Takes the options with this prefix. Raises `BadOption`; warns `OptionWithoutEffect`."""
        self.prefix = prefix
        self._values = {
            name[len(prefix) :].lower(): value
            for name, value in options.items()
            if name.lower().startswith(prefix)
        }
        used, tuning = (set(names[prefix].lower().split()) for names in (_USED, _TUNING))
        for name in self._values.keys() - used:
            if name in tuning:
                warnings.warn(
                    f"option {prefix}{name} tunes the Java client and has no effect here",
                    OptionWithoutEffect,
                    stacklevel=2,
                )
                continue
            reason = _REFUSED.get(name, f"known are {', '.join(_USED[prefix].split())}")
            parts = (reason,) if isinstance(reason, str) else reason
            raise BadOption(f"option {prefix}{name} is not supported: ", *parts)

    def __bool__(self) -> bool:
        return bool(self._values)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower()) or None

    def flag(self, name: str) -> bool | None:
        given = self.text(name)
        if given is None:
            return None
        if given.lower() not in ("true", "false"):
            raise BadOption(f"option {self.prefix}{name} is {given!r}; expected true or false")
        return given.lower() == "true"

    def number(self, name: str) -> int | None:
        given = self.text(name)
        if given is None:
            return None
        if not given.isdecimal():
            raise BadOption(f"option {self.prefix}{name} is {given!r}; expected a whole number")
        return int(given)

    def only(self, name: str, wanted: str, reason: str) -> None:
        """Raises `BadOption` if the option has any other value."""
        given = self.text(name)
        if given is not None and given.lower() != wanted.lower():
            raise BadOption(
                f"option {self.prefix}{name} is {given!r}, but only {wanted} is possible: {reason}"
            )


def access_of(service_url: str, settings: Settings, reader: Settings) -> Access:
    """The URLs and credentials, from the JVM client's options. Raises `BadOption`."""
    if settings.flag("useTls") and not service_url.startswith("pulsar+ssl://"):
        raise BadOption(
            f"option {settings.prefix}useTls: give ", SERVICE_URL, " as pulsar+ssl://HOST:PORT instead"
        )
    action = reader.text("cryptoFailureAction") or "FAIL"
    if action.upper() not in ("FAIL", "CONSUME"):
        raise BadOption(
            f"option {reader.prefix}cryptoFailureAction is {action!r}; expected FAIL, or CONSUME for rows "
            "whose value is null: no message is left out"
        )
    reader.only("readCompacted", "false", "every message is read")
    method, data, certificate, key = _credentials(settings)
    return Access(
        service_url,
        auth_method=method,
        auth_data=data,
        trust_certificates=settings.text("tlsTrustCertsFilePath"),
        allow_insecure=settings.flag("tlsAllowInsecureConnection") or False,
        verify_hostname=settings.flag("tlsHostnameVerificationEnable") is not False,
        certificate=settings.text("tlsCertificateFilePath") or certificate,
        certificate_key=settings.text("tlsKeyFilePath") or key,
        public_key=reader.text("publicKeyPath"),
        private_key=reader.text("privateKeyPath"),
        reads_undecrypted=action.upper() == "CONSUME",
    )


def _credentials(settings: Settings) -> tuple[str | None, bytes | None, str | None, str | None]:
    """Method, data, and the files of a certificate and its key."""
    plugin = (settings.text("authPluginClassName") or "").rpartition(".")[2]
    params = settings.text("authParams") or settings.text("authParamMap") or ""
    if not plugin and not params:
        return None, None, None, None
    if plugin == "AuthenticationToken" or (not plugin and params.startswith(("token:", "file:"))):
        return "token", _token(settings, params), None, None
    if plugin == "AuthenticationBasic":
        values = _pairs(settings, params) if params.startswith("{") else {}
        text = f"{values['userId']}:{values.get('password', '')}" if "userId" in values else params
        return "basic", text.encode(), None, None
    if plugin == "AuthenticationTls":
        values = _pairs(settings, params)
        return "tls", None, values.get("tlsCertFile"), values.get("tlsKeyFile")
    raise BadOption(
        f"option {settings.prefix}authPluginClassName is {plugin!r}; supported are AuthenticationToken, "
        "AuthenticationBasic and AuthenticationTls"
    )


def _token(settings: Settings, params: str) -> bytes:
    if params.startswith("{"):
        params = _pairs(settings, params).get("token", "")
    if params.startswith("file:"):
        path = Path("/" + params.removeprefix("file:").lstrip("/"))
        try:
            return path.read_text().strip().encode()
        except OSError as error:
            raise BadOption(f"option {settings.prefix}authParams: no token can be read: {error}") from None
    return params.removeprefix("token:").encode()


def _pairs(settings: Settings, params: str) -> dict[str, str]:
    """From JSON, or name:value,name:value."""
    if params.startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(params).items()}
        except ValueError:
            raise BadOption(f"option {settings.prefix}authParams is not JSON") from None
    return {name.strip(): value for name, _, value in (pair.partition(":") for pair in params.split(","))}
