"""A small blocking client of Pulsar's binary protocol: what runs in a Spark worker, where there is no
loop.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from geminga import __version__
from geminga.client.session import CONNECT_ID, Answer, Session
from geminga.clock import RealClock
from geminga.pipeline.client.addresses import addresses
from geminga.pipeline.errors import SERVICE_URL, Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import BadFrame, Decoder

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 20.0
_RECEIVE_BYTES = 256 * 1024
_LEFT_SECONDS_MIN = 0.05
_UNUSABLE = "cannot be used as a TLS file"
_CLOCK = RealClock()


class Connection:
    """One connection. Requests block for `REQUEST_SECONDS` at most, and not beyond `until_s` of the monotonic
    clock. Not for several threads.

    Commands that are no answers (deliveries, receipts) wait for `receive`.
    """

    def __init__(self, sock: socket.socket, url: str, until_s: float = math.inf) -> None:
        self.url = url
        self._until_s = until_s
        self.socket = sock
        self.session = Session()
        """Others may ask by it too, where they read the socket themselves."""
        self._decoder = Decoder()
        self._answers: dict[int, Answer] = {}
        self._arrived: list[Any] = []
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
            made._introduce(access)
        except BaseException:
            sock.close()
            raise
        return made

    def _introduce(self, access: Access) -> None:
        hello = self.session.connect(
            f"geminga-pipeline-{__version__}",
            auth_method=access.auth_method,
            auth_data=access.auth_data,
            broker_entry_metadata=True,
        )
        self.write(hello)
        self._answer_to(CONNECT_ID)

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker takes."""
        return self.session.message_bytes_max

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def requests_end_by(self, until_s: float) -> Iterator[None]:
        """Requests inside do not block beyond `until_s` of the monotonic clock. Requests after it have no
        common end, even if the connection was opened with one.
        """
        self._until_s = until_s
        try:
            yield
        finally:
            self._until_s = math.inf

    def new_consumer_id(self) -> int:
        """One that no consumer of this connection had before."""
        self._last_consumer_id += 1
        return self._last_consumer_id

    def write(self, data: bytes) -> None:
        try:
            self.socket.settimeout(_left(REQUEST_SECONDS, self._until_s))
            self.socket.sendall(data)
        except OSError as error:
            raise BrokerUnreachable(f"the connection to {self.url} is lost: {error}") from None

    def request(self, build: Callable[[int], bytes]) -> Any:
        """Send what `build` makes of a new request id; the broker's answer. Raises `Refused`."""
        request_id, data = self.session.ask(build)
        self.write(data)
        return self._answer_to(request_id)

    def _answer_to(self, request_id: int) -> Any:
        seconds = _left(REQUEST_SECONDS, self._until_s)
        until = _CLOCK.monotonic_s() + seconds
        while request_id not in self._answers:
            left = until - _CLOCK.monotonic_s()
            if left <= 0 or not self._receive(left):
                raise BrokerUnreachable(f"{self.url} does not answer within {seconds:.0f} s")
        answer = self._answers.pop(request_id)
        if answer.refusal is not None:
            raise Refused(*answer.refusal)
        return answer.command

    def receive(self, timeout_s: float) -> list[Any]:
        """What has arrived and is no answer, or what arrives next; empty when nothing does. Raises
        `BrokerUnreachable`.
        """
        until = _CLOCK.monotonic_s() + timeout_s
        while not self._arrived and (left := until - _CLOCK.monotonic_s()) > 0:
            if not self._receive(left):
                break
        arrived, self._arrived = self._arrived, []
        return arrived

    def _receive(self, timeout_s: float) -> bool:
        """Whatever comes next, answers and all, PINGs answered; False when nothing came in time."""
        try:
            self.socket.settimeout(timeout_s)
            data = self.socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return False
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
        for command in commands:
            if isinstance(command, pb.CommandSendReceipt):
                self._arrived.append(command)  # no answer, and there is one for each entry sent
                continue
            heard = self.session.hear(command)
            if isinstance(heard, Answer):
                self._answers[heard.request_id] = heard
            elif heard is None:
                self._arrived.append(command)
            elif heard:
                self.write(heard)
        return True

    def receive_into(self, room: memoryview, timeout_s: float) -> int | None:
        """For callers that take frames apart themselves: how many bytes came, None if none did in time.

        Raises `BrokerUnreachable`.
        """
        try:
            self.socket.settimeout(timeout_s)
            size = self.socket.recv_into(room)
        except TimeoutError:
            return None
        except OSError as error:
            raise BrokerUnreachable(f"the connection to {self.url} is lost: {error}") from None
        if size == 0:
            raise BrokerUnreachable(f"{self.url} closed the connection")
        return size

    def forget_arrived(self) -> None:
        """Drop what has arrived and is no answer, for a consumer that is gone."""
        self._arrived.clear()

    def finish_frame(self) -> None:
        """Until nothing is kept of a frame that is not whole: others may read the socket then. Drops what
        arrives, and has arrived. Raises `BrokerUnreachable`.
        """
        until_s = _CLOCK.monotonic_s() + _left(REQUEST_SECONDS, self._until_s)
        while self._decoder.partial_bytes:
            left = until_s - _CLOCK.monotonic_s()
            if left <= 0:
                raise BrokerUnreachable(f"{self.url} stopped in the middle of an answer")
            self._receive(left)
        self._arrived.clear()


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
