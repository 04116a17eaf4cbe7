"""`geminga standalone`: read the configuration, run the broker, say when it is ready, stop it on a signal.

Exit codes: 0 stopped when told to, 1 the storage failed while it ran, 2 wrong usage or configuration, 3 a
port is taken, 4 the data directory cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import gc
import json
import logging
import os
import shlex
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from geminga import __version__
from geminga.allocation import Collections, return_free_memory, share_one_arena
from geminga.cli.arguments.data_directory import default_data_dir, named, no_directory
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, STARTED_S, Parser
from geminga.cli.broker_log import BrokerLog
from geminga.cli.output_thread import Streams, streams_on_threads
from geminga.cli.stopping import Stop, stop_signals
from geminga.config.config import Config, ConfigError
from geminga.config.file import ConfigFile, Property, parse
from geminga.config.loading import Loaded, is_container, load
from geminga.config.memory_budget import BUDGET_MB_MAX, BUDGET_MB_MIN
from geminga.config.operator_token import NO_OPERATOR_TOKEN, OperatorToken
from geminga.errors import BadVersion, CorruptData, StorageError

if TYPE_CHECKING:
    from geminga.chaos.rules.rule import Rule
    from geminga.server.server import Addresses

EXIT_PORT_TAKEN = 3
EXIT_DATA_DIRECTORY = 4
STDIN = 0

FLAG_KEYS = {
    "port": "brokerServicePort",
    "web_port": "webServicePort",
    "bind_address": "bindAddress",
    "advertised_address": "advertisedAddress",
    "clock": "gemingaClock",
}

log = logging.getLogger("geminga.standalone")


def parser(kind: type[Parser]) -> Parser:
    made = kind(prog="geminga standalone", description="Run a broker until it is told to stop.")
    add = made.add_argument
    add(
        "--data-dir",
        type=named,
        metavar="DIR",
        help=f"the data directory (default: {default_data_dir()})",
    )
    add("--port", metavar="N", help="port of the binary protocol (default: 6650; 0: any free one)")
    add("--web-port", metavar="N", help="port of the admin API and metrics (default: 8080; 0: any free one)")
    add("--conf", "-c", "--config", metavar="FILE", help="a broker.conf or standalone.conf")
    add(
        "--memory",
        metavar="SIZE",
        help="memory for the whole process, such as 192M (the default), 512MB or 1GiB; M is 1024 * 1024",
    )
    add("--bind-address", metavar="HOST", help="address to listen on (default: 127.0.0.1)")
    add("--advertised-address", metavar="HOST", help="address that lookups give to clients")
    add(
        "--set",
        "-D",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any key of broker.conf; may be repeated, and overrides the file and the environment",
    )
    add(
        "--clock",
        choices=("real", "virtual"),
        help="virtual: a clock that 'geminga clock advance 30d' moves, for tests; a data directory keeps the "
        "clock that it was made with (default: that one; real for a new directory)",
    )
    add(
        "--chaos",
        action="store_true",
        help="allow HTTP clients on this machine, and those with $GEMINGA_OPERATOR_TOKEN, to inject faults "
        "and to replace all data by a snapshot, for tests",
    )
    add(
        "--fault",
        metavar="FILE",
        action="append",
        default=[],
        help="rules of faults as TOML, in force before anything of the data directory is opened; needs "
        "--chaos, may be repeated",
    )
    add(
        "--wipe-data",
        action="store_true",
        help="first delete all data of earlier runs; refused for a directory that has anything else in it",
    )
    add(
        "--stop-with-stdin",
        action="store_true",
        help="stop when standard input ends, as a pipe does when the program at its other end is gone",
    )
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="what is written to standard error (default: info); debug: also each client that connects, "
        "produces, subscribes or is refused, and each admin request",
    )
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="json: each record is a line with time, level, logger and message (default: text)",
    )
    # Flags of Pulsar's own launcher that switch off what is not here anyway.
    for flags in (("-nfw", "--no-functions-worker"), ("-nss", "--no-stream-storage")):
        add(*flags, action="store_true", help=argparse.SUPPRESS)
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code. Nothing that it says can hold it up."""
    share_one_arena()
    with streams_on_threads() as streams:
        flags = parser(kind).parse_strictly(arguments)
        broker_log = BrokerLog(streams.err, flags.log_level, flags.log_format)
        logging.basicConfig(handlers=[broker_log], level=flags.log_level.upper())
        try:
            return _run(flags, streams, broker_log)
        except Exception:
            # A bug of ours. Told here, where it goes through a thread, and not by the interpreter.
            traceback.print_exc()
            return EXIT_FAILED
        finally:
            broker_log.tell_counts()
            logging.getLogger().removeHandler(broker_log)


def _run(flags: argparse.Namespace, streams: Streams, broker_log: BrokerLog) -> int:
    try:
        loaded = read_configuration(flags)
        fault_rules = _fault_rules(flags.fault, loaded.config) if flags.fault else ()
    except ConfigError as error:
        for problem in error.problems:
            print(f"geminga standalone: {problem}", file=sys.stderr)
        return EXIT_USAGE
    if flags.wipe_data and (loaded.config.journal_directories or loaded.config.ledger_directories):
        print(
            "geminga standalone: --wipe-data deletes no journalDirectories and ledgerDirectories; delete "
            "them and the data directory yourself",
            file=sys.stderr,
        )
        return EXIT_USAGE
    for notice in loaded.notices:
        log.warning("%s", notice)
    data_dir = os.path.abspath(flags.data_dir or default_data_dir())
    try:
        data_dir.encode()
    except UnicodeEncodeError:
        print(
            f"geminga standalone: {data_dir}: the name is not UTF-8; choose another one with --data-dir",
            file=sys.stderr,
        )
        return EXIT_DATA_DIRECTORY
    if (in_the_way := no_directory(data_dir)) is not None:
        reason = f"{in_the_way} is not a directory; name another data directory with --data-dir"
        print(f"geminga standalone: {reason}", file=sys.stderr)
        return EXIT_DATA_DIRECTORY
    broker = _Broker(
        loaded.config,
        data_dir,
        has_banner=flags.log_format == "text",
        operator_token=loaded.operator_token,
        lines_when_ready=_container_lines(flags) if is_container(os.environ) else (),
        stops_with_stdin=flags.stop_with_stdin,
        wipes_data=flags.wipe_data,
        fault_rules=fault_rules,
    )
    try:
        trio.run(broker.run, streams, broker_log)
    except BaseExceptionGroup as group:
        return broker.explain(group)
    except (StorageError, OSError) as error:
        return broker.explain(error)
    return EXIT_OK


def read_configuration(flags: argparse.Namespace) -> Loaded:
    """File, environment and flags together. Raises `ConfigError`."""
    given = []
    for assignment in flags.set:
        key, separator, value = assignment.partition("=")
        if not separator:
            raise ConfigError([f"--set {assignment}: expected KEY=VALUE"])
        given.append(Property(key.strip(), value.strip(), f"--set {assignment}"))
    for attribute, key in FLAG_KEYS.items():
        value = getattr(flags, attribute)
        if value is not None:
            given.append(Property(key, value.strip(), f"--{attribute.replace('_', '-')} {value}"))
    if flags.memory is not None:
        given.append(Property("memoryMb", str(memory_mb(flags.memory)), f"--memory {flags.memory}"))
    if flags.chaos:
        given.append(Property("chaosEnabled", "true", "--chaos"))
    file = _read_file(flags.conf) if flags.conf else None
    return load(file=file, environment=os.environ, flags=given)


def _fault_rules(files: Sequence[str], config: Config) -> Sequence[Rule]:
    from geminga.server.fault_parts import rules_of  # no other start needs it

    return rules_of(files, config)


def memory_mb(text: str) -> int:
    """The megabytes (of 1024 * 1024 bytes) in `192M` or `2G`. Raises `ConfigError`."""
    upper = text.strip().upper().removesuffix("IB").removesuffix("B")
    digits, unit = upper[:-1], upper[-1:]
    if unit not in ("M", "G") or not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise ConfigError(
            [f"--memory {text}: expected a whole number of M, MB, MiB, G, GB or GiB, such as 192M or 1G"]
        )
    found = int(digits) * (1024 if unit == "G" else 1)
    if not BUDGET_MB_MIN <= found <= BUDGET_MB_MAX:
        raise ConfigError([f"--memory {text}: expected from {BUDGET_MB_MIN}M to {BUDGET_MB_MAX // 1024}G"])
    return found


def _container_lines(flags: argparse.Namespace) -> Sequence[str]:
    from geminga.config.container import NO_FUNCTIONS, READY_LINES  # no other start needs it

    return READY_LINES if flags.no_functions_worker else (*READY_LINES, NO_FUNCTIONS)


def _read_file(name: str) -> ConfigFile:
    from geminga.storage.disk import RealDisk

    try:
        return parse(name, RealDisk(for_owner=False).read_file(name))
    except StorageError as error:
        raise ConfigError([f"--conf {name}: {error}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None


class _Broker:
    """One run of the server, and what is said about it."""

    def __init__(
        self,
        config: Config,
        data_dir: str,
        *,
        has_banner: bool = True,
        operator_token: OperatorToken = NO_OPERATOR_TOKEN,
        lines_when_ready: Sequence[str] = (),
        stops_with_stdin: bool = False,
        wipes_data: bool = False,
        fault_rules: Sequence[Rule] = (),
    ) -> None:
        """`lines_when_ready` go to the log then."""
        self._config = config
        self._data_dir = data_dir
        self._has_banner = has_banner
        self._operator_token = operator_token
        self._lines_when_ready = lines_when_ready
        self._stops_with_stdin = stops_with_stdin
        self._wipes_data = wipes_data
        self._fault_rules = fault_rules
        self._ready = False
        self._collections = Collections()

    async def run(self, streams: Streams, broker_log: BrokerLog) -> None:
        # Importing makes many objects that stay: looking through them for garbage meanwhile is wasted time.
        gc.disable()
        from geminga.server.server import serve

        start = functools.partial(
            serve,
            self._config,
            data_dir=self._data_dir,
            dropped_log_lines=streams.dropped_lines,
            operator_token=self._operator_token,
            reopened=self._keep_what_there_is,
            wipes_data=self._wipes_data,
            fault_rules=self._fault_rules,
        )
        with trio.open_signal_receiver(*stop_signals()) as signals, contextlib.closing(self._collections):
            async with trio.open_nursery() as listening:
                serving = trio.CancelScope()
                stop = Stop(serving)
                listening.start_soon(broker_log.end_rounds)
                listening.start_soon(stop.on, signals, streams.finish)
                if self._stops_with_stdin:
                    listening.start_soon(stop.at_end_of, STDIN)
                with serving:
                    async with trio.open_nursery() as nursery:
                        self._announce(await nursery.start(start))
                listening.cancel_scope.cancel()

    def _announce(self, addresses: Addresses) -> None:
        self._ready = True
        startup_ms = round((time.monotonic() - STARTED_S) * 1000)
        host = self._config.advertised_address or _reachable(self._config.bind_address)
        host = f"[{host}]" if ":" in host else host
        binary = f"pulsar://{host}:{addresses.binary_port}"
        web = f"http://{host}:{addresses.web_port}"
        if self._has_banner:
            print(
                f"\n  Geminga {__version__} is ready ({startup_ms} ms)\n"
                f"    clients   {binary}\n"
                f"    admin     {web}\n"
                f"    data      {self._data_dir}\n"
                f"  Ctrl-C stops it.\n",
                file=sys.stderr,
            )
        else:
            log.info("ready after %d ms: %s, %s, data in %s", startup_ms, binary, web, self._data_dir)
        for line in self._lines_when_ready:
            log.info("%s", line)
        event = {
            "event": "ready",
            "binary": binary,
            "web": web,
            "pid": os.getpid(),
            "data_dir": self._data_dir,
            "startup_ms": startup_ms,
        }
        if not sys.stdout.isatty():  # for a program that reads it; a person has the lines above
            print(json.dumps(event))
        self._keep_what_there_is()

    def _keep_what_there_is(self) -> None:
        """What start-up made lives as long as the process: no later collection needs to walk over it."""
        self._collections.begin()  # again when a state that was restored has replaced what was there before
        gc.enable()
        return_free_memory()

    def explain(self, failure: BaseException) -> int:
        """Say what ended the run, and with which exit code. Raises what is a bug of ours."""
        from geminga.bookie.running.directory_lists import RepeatedDirectory

        causes = list(_leaves(failure))
        for cause in causes:
            if isinstance(cause, StorageError):
                print(f"geminga standalone: {cause}", file=sys.stderr)
                if self._ready:
                    return EXIT_FAILED
                if isinstance(cause, RepeatedDirectory):
                    return EXIT_USAGE
                for hint in self._hints(cause):
                    print(hint, file=sys.stderr)
                return EXIT_DATA_DIRECTORY
        for cause in causes:
            if isinstance(cause, BadVersion) and not self._ready:  # as a rule of faults says
                print(f"geminga standalone: {cause}", file=sys.stderr)
                return EXIT_DATA_DIRECTORY
            if isinstance(cause, OSError) and not self._ready:
                return self._explain_listen(cause)
        raise failure

    def _hints(self, error: StorageError) -> list[str]:
        """Advice on a failed start, where the error itself gives none."""
        from geminga.metadata.instance import ForeignDirectory
        from geminga.server.metadata_check import METADATA
        from geminga.storage.disk_errors import DirectoryInUse, DiskFull

        if isinstance(error, CorruptData):
            if str(error).startswith(os.path.join(self._data_dir, METADATA)):
                return [
                    "Put the metadata of a backup in its place. Without one, move that directory away and "
                    f"run 'geminga bookie unrecorded restore --data-dir {shlex.quote(self._data_dir)}': it "
                    "brings topics and messages back, without subscriptions and policies. 'geminga pipeline "
                    "rescue' reads every entry, whatever is damaged."
                ]
            return [
                f"'geminga bookie verify --data-dir {shlex.quote(self._data_dir)}' lists what is damaged "
                "in the bookie."
            ]
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            from geminga.cli.arguments.access import advice

            return advice(cause, self._data_dir, in_container=is_container(os.environ))
        if isinstance(error, DiskFull):
            return ["Free some space on that disk, and start again."]
        if isinstance(error, DirectoryInUse):
            if str(error).startswith(f"{self._data_dir}: "):
                return ["Stop the process that uses it, or choose another data directory with --data-dir."]
            return ["Stop that process, or give this broker directories that no other one links or mounts."]
        named = str(error).partition(": ")[0]  # the data directory itself, or one above it
        if isinstance(error, ForeignDirectory) or f"{self._data_dir}/".startswith(f"{named}/"):
            return [f"The data directory is {self._data_dir}; --data-dir names another one."]
        return []

    def _explain_listen(self, error: OSError) -> int:
        config = self._config
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            reason = f"not an address of this machine ({error})"
            print(f"geminga standalone: bindAddress {config.bind_address}: {reason}", file=sys.stderr)
            return EXIT_USAGE
        from geminga.cli.arguments.ports import describe_refusal

        wanted = (("--port", config.broker_service_port), ("--web-port", config.web_service_port))
        for text in describe_refusal(config.bind_address, wanted) or [f"cannot listen: {error}"]:
            print(f"geminga standalone: {text}", file=sys.stderr)
        return EXIT_PORT_TAKEN


def _leaves(failure: BaseException) -> list[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        return [leaf for inner in failure.exceptions for leaf in _leaves(inner)]
    return [failure]


def _reachable(bind_address: str) -> str:
    """Where a client on this machine connects to."""
    return "localhost" if bind_address in ("0.0.0.0", "::", "") else bind_address
