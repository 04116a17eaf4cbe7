"""A small blocking client of Pulsar's binary protocol: what runs in a Spark worker, where there is no
loop.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from geminga import __version__
from geminga.clock import RealClock
from geminga.limits import MESSAGE_BYTES_MAX, PROTOCOL_VERSION
from geminga.pipeline.client.addresses import addresses
from geminga.pipeline.errors import SERVICE_URL, Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import request_id_of
from geminga.wire.decoder import BadFrame, Decoder
from geminga.wire.encoder import frame

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 20.0
_RECEIVE_BYTES = 256 * 1024
_LEFT_SECONDS_MIN = 0.05
_UNUSABLE = "cannot be used as a TLS file"
_CLOCK = RealClock()


class Connection:
    """One connection. Requests block for `REQUEST_SECONDS` at most, and not beyond `until_s` of the monotonic
    clock. Not for several threads.

    Commands that are no answers (deliveries, receipts) wait in `arrived` for whoever reads there.
    """

    def __init__(self, sock: socket.socket, url: str, until_s: float = math.inf) -> None:
        self.url = url
        self.until_s = until_s
        self.socket = sock
        self.arrived: deque[Any] = deque()
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self._decoder = Decoder()
        self._last_id = 0
        self._last_consumer_id = 0

    @classmethod
    def open(cls, access: Access, url: str | None = None, *, until_s: float = math.inf) -> Connection:
        """Connect to `url` (else to the first broker of the access that answers) and say hello, all of it
        until then.

        Raises `BrokerUnreachable`, `Refused`.
        """
        error: PipelineError | None = None
        for scheme, host, port in addresses(url or access.service_url):
            try:
                return cls._open(access, scheme, host, port, until_s)
            except BrokerUnreachable as found:
                error = found
        assert error is not None
        raise error

    @classmethod
    def _open(cls, access: Access, scheme: str, host: str, port: int, until_s: float) -> Connection:
        url = f"{scheme}://{host}:{port}"
        context = tls_context(access) if scheme == "pulsar+ssl" else None
        seconds = _left(CONNECT_SECONDS, until_s)
        try:
            sock = socket.create_connection((host, port), timeout=seconds)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise PipelineError(
                    f"too many open files, so {url} cannot be connected to: raise the limit of this "
                    "process (ulimit -n), or see what else in it holds files open"
                ) from None
            raise BrokerUnreachable(
                f"no broker answers at {url} ({error}); is it running, and is ", SERVICE_URL, " right?"
            ) from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                sock = _encrypted(sock, context, host, url)
            made = cls(sock, url, until_s)
            made.write(_connect(access))
            made._introduce()
        except BaseException:
            sock.close()
            raise
        return made

    def _introduce(self) -> None:
        answer = self._wait(lambda command: isinstance(command, pb.CommandConnected | pb.CommandError))
        if isinstance(answer, pb.CommandError):
            raise Refused(answer.error, answer.message)
        self.message_bytes_max = answer.max_message_size or MESSAGE_BYTES_MAX

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def new_consumer_id(self) -> int:
        """One that no consumer of this connection had before."""
        self._last_consumer_id += 1
        return self._last_consumer_id

    def write(self, data: bytes) -> None:
        try:
            self.socket.settimeout(_left(REQUEST_SECONDS, self.until_s))
            self.socket.sendall(data)
        except OSError as error:
            raise BrokerUnreachable(f"the connection to {self.url} is lost: {error}") from None

    def request(self, build: Callable[[int], bytes]) -> Any:
        """Send what `build` makes of a new request id; the broker's answer. Raises `Refused`."""
        request_id = self.new_id()
        self.write(build(request_id))
        while True:
            answer = self._wait(lambda command: _request_id(command) == request_id)
            if isinstance(answer, pb.CommandProducerSuccess) and not answer.producer_ready:
                continue  # it waits for exclusive access; another success follows
            raise_refusal(answer)
            return answer

    def _wait(self, wanted: Callable[[Any], bool]) -> Any:
        """The first command that is wanted; what else arrives is kept."""
        seconds = _left(REQUEST_SECONDS, self.until_s)
        until = _CLOCK.monotonic_s() + seconds
        answer = None
        while answer is None:
            left = until - _CLOCK.monotonic_s()
            if left <= 0 or not (commands := self.receive(left)):
                raise BrokerUnreachable(f"{self.url} does not answer within {seconds:.0f} s")
            for command in commands:
                if answer is None and wanted(command):
                    answer = command
                else:
                    self.arrived.append(command)
        return answer

    def receive(self, timeout_s: float) -> list[Any]:
        """What arrives next, PINGs answered; empty when nothing did. Raises `BrokerUnreachable`."""
        until = _CLOCK.monotonic_s() + timeout_s
        while (left := until - _CLOCK.monotonic_s()) > 0:
            try:
                self.socket.settimeout(left)
                data = self.socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                return []
            except OSError as error:
                raise BrokerUnreachable(f"the connection to {self.url} is lost: {error}") from None
            if not data:
                raise BrokerUnreachable(f"{self.url} closed the connection")
            if data.startswith(b"HTTP/"):
                raise PipelineError(
                    f"{self.url} is an HTTP port; ", SERVICE_URL, " needs the binary one (usually 6650)"
                )
            try:
                commands = self._decoder.feed(data)
            except BadFrame as error:
                raise BrokerUnreachable(f"{self.url} does not follow the protocol: {error}") from None
            found = []
            for command in commands:
                if isinstance(command, pb.CommandPing):
                    self.write(encoder.pong())
                else:
                    found.append(command)
            if found:
                return found
        return []

    def finish_frame(self) -> None:
        """Until nothing is kept of a frame that is not whole: others may read the socket then. Drops what
        arrives, and has arrived. Raises `BrokerUnreachable`.
        """
        until_s = _CLOCK.monotonic_s() + _left(REQUEST_SECONDS, self.until_s)
        self.arrived.clear()
        while self._decoder.partial_bytes:
            left = until_s - _CLOCK.monotonic_s()
            if left <= 0:
                raise BrokerUnreachable(f"{self.url} stopped in the middle of an answer")
            self.receive(left)


def _connect(access: Access) -> bytes:
    command = pb.CommandConnect(
        client_version=f"geminga-pipeline-{__version__}",
        protocol_version=PROTOCOL_VERSION,
        auth_method_name=access.auth_method,
        auth_data=access.auth_data,
        feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=True),
    )
    return frame(pb.BaseCommand(type=pb.BaseCommand.Type.CONNECT, connect=command))


def tls_context(access: Access) -> ssl.SSLContext:
    """Raises `PipelineError`, which names the file, for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=access.trust_certificates)
    except OSError as error:
        raise PipelineError(
            f"{access.trust_certificates} (tlsTrustCertsFilePath) {_UNUSABLE}: {error}"
        ) from None
    try:
        if access.certificate is not None:
            context.load_cert_chain(access.certificate, access.certificate_key)
    except OSError as error:
        files = " or ".join(filter(None, (access.certificate, access.certificate_key)))
        raise PipelineError(
            f"{files} (tlsCertificateFilePath, tlsKeyFilePath) {_UNUSABLE}: {error}"
        ) from None
    if access.allow_insecure or not access.verify_hostname:
        context.check_hostname = False
    if access.allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    return context


def _left(seconds: float, until_s: float) -> float:
    """So many seconds, or less if that would be too late; never none at all, which would mean no limit."""
    return max(min(seconds, until_s - _CLOCK.monotonic_s()), _LEFT_SECONDS_MIN)


def _encrypted(sock: socket.socket, context: ssl.SSLContext, host: str, url: str) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise PipelineError(
            f"{url}: its certificate is not trusted ({error.verify_message}); name the file with the "
            "authority that signed it: pulsar.client.tlsTrustCertsFilePath"
        ) from None
    except OSError as error:
        raise BrokerUnreachable(f"{url} does not speak TLS as we do ({error}); is the port right?") from None


def _request_id(command: Any) -> int | None:
    return request_id_of(command) if not isinstance(command, pb.CommandConnected) else None


def raise_refusal(answer: Any) -> None:
    """Raises `Refused` if that is what a broker answered."""
    if isinstance(answer, pb.CommandError):
        raise Refused(answer.error, answer.message)
    if isinstance(answer, pb.CommandPartitionedTopicMetadataResponse | pb.CommandLookupTopicResponse):
        if answer.response == type(answer).Failed:
            raise Refused(answer.error, answer.message)
    elif isinstance(answer, pb.CommandGetSchemaResponse | pb.CommandGetOrCreateSchemaResponse):
        if answer.HasField("error_code"):
            raise Refused(answer.error_code, answer.error_message)
    elif isinstance(answer, pb.CommandAckResponse) and answer.HasField("error"):
        raise Refused(answer.error, answer.message)
