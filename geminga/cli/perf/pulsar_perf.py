"""`geminga pulsar-perf produce|consume|read`: pulsar-perf's words for `geminga perf`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from geminga.cli.arguments.options import count, positive, rate
from geminga.cli.arguments.parser import EXIT_NOTHING, EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.perf import perf

FOR_EVER = "3650d"
"""pulsar-perf runs until it is stopped."""
_USAGE = """usage: pulsar-perf produce|consume|read [FLAGS] TOPIC

Measure rates and latencies of a broker, with the flags of Apache Pulsar's pulsar-perf.

  produce   publish messages
  consume   receive them
  read      read them, without a subscription that stays

'pulsar-perf COMMAND --help' lists the flags; 'geminga perf' measures more."""
_EVERYWHERE = (
    ("--auth-plugin",),
    ("--auth-params",),
    ("--trust-cert-file",),
    ("-c", "--max-connections"),
    ("-i", "--stats-interval-seconds"),
    ("-ioThreads", "--num-io-threads"),
    ("--listener-name",),
    ("-lt", "--num-listener-threads"),
    ("-mlr", "--max-lookup-request"),
    ("-ml", "--memory-limit"),
    ("-threads", "--num-test-threads"),
    ("-au", "--admin-url"),
    ("--histogram-file",),
)
_PRODUCING = (
    ("-n", "--num-producers"),
    ("-p", "--max-outstanding-across-partitions"),
    ("-bb", "--batch-max-bytes"),
    ("-bp",),
    ("-z", "--compression"),
    ("-mk", "--message-key-generation-mode"),
    ("-am", "--access-mode"),
    ("-pn", "--producer-name"),
    ("--send-timeout",),
    ("--warmup-time",),
)
_CONSUMING = (
    ("-n", "--num-consumers"),
    ("-ns", "--num-subscriptions"),
    ("-p", "--receiver-queue-size-across-partitions"),
    ("--acks-delay-millis",),
    ("-mc", "--max_chunked_msg"),
    ("-pm", "--pool-messages"),
)
_SWITCHES = {
    "produce": (("-kb",), ("-set", "--set-event-time"), ("-ef", "--exit-on-failure")),
    "consume": (
        ("-aq", "--auto-scaled-receiver-queue-size"),
        ("-rs", "--replicated"),
        ("--batch-index-ack",),
    ),
    "read": (),
}
"""Flags that are taken and change nothing here, with a value and without one: a run is one client with one
connection, one producer or consumer for each partition.
"""


def produce_parser(kind: type[Parser]) -> Parser:
    made = _parser(kind, "produce", "Publish messages and measure how long it takes.", _PRODUCING)
    add = made.add_argument
    add("-r", "--rate", type=rate, default=100, help="messages a second (default: 100)")
    add("-s", "--size", type=positive, default=1024, help="bytes of a message (default: 1024)")
    add("-o", "--max-outstanding", type=count, default=1000, help="messages under way (default: 1000)")
    add(
        "-b",
        "--batch-time-window",
        type=float,
        default=1.0,
        metavar="MS",
        help="an entry has the messages of so many ms at --rate (default: 1)",
    )
    add("-bm", "--batch-max-messages", type=positive, default=1000, help="but no more than (default: 1000)")
    add("-db", "--disable-batching", action="store_true", help="an entry for each message")
    add("-m", "--num-messages", type=count, default=0, help="how many; 0 (the default): by time only")
    return made


def consume_parser(kind: type[Parser]) -> Parser:
    made = _parser(kind, "consume", "Receive messages and measure how long they took.", _CONSUMING)
    add = made.add_argument
    add("-ss", "--subscriptions", default="sub", help="the subscription (default: sub)")
    add("-st", "--subscription-type", default="Exclusive", help="its type (default: Exclusive)")
    add(
        "-sp",
        "--subscription-position",
        choices=("Latest", "Earliest"),
        default="Latest",
        help="where a new one begins (default: Latest)",
    )
    add("-q", "--receiver-queue-size", type=positive, default=1000, help="sent ahead (default: 1000)")
    add("-m", "--num-messages", type=count, default=0, help="how many; 0 (the default): by time only")
    return made


def read_parser(kind: type[Parser]) -> Parser:
    made = _parser(kind, "read", "Read messages and measure how long they took.", ())
    add = made.add_argument
    add(
        "-m",
        "--start-message-id",
        default="earliest",
        help="where to begin: earliest, latest or ledger:entry (default: earliest)",
    )
    add("-q", "--receiver-queue-size", type=positive, default=1000, help="sent ahead (default: 1000)")
    add("-n", "--num-messages", type=count, default=0, help="how many; 0 (the default): by time only")
    return made


def _parser(kind: type[Parser], what: str, text: str, ignored: Sequence[tuple[str, ...]]) -> Parser:
    made = kind(prog=f"pulsar-perf {what}", description=text)
    made.add_argument("topic", help="the topic; all partitions of a partitioned one")
    made.add_argument("-u", "--service-url", help="pulsar://HOST:PORT or http://HOST:PORT of the broker")
    made.add_argument(
        "-time",
        "--test-duration",
        type=count,
        default=0,
        metavar="SECONDS",
        help="how long; 0 (the default): until it is stopped",
    )
    made.add_argument("-t", "--num-topics", "--num-topic", type=_one, default=1, help=argparse.SUPPRESS)
    for names in (*_EVERYWHERE, *ignored):
        made.add_argument(*names, dest=_ignored(names), help=argparse.SUPPRESS)
    for names in (("-bw", "--busy-wait"), *_SWITCHES[what]):
        made.add_argument(*names, dest=_ignored(names), action="store_true", help=argparse.SUPPRESS)
    return made


def _ignored(names: Sequence[str]) -> str:
    return f"ignored {names[-1]}"


def _one(text: str) -> int:
    if text != "1":
        raise argparse.ArgumentTypeError(f"{text}: one topic at a time; run one pulsar-perf for each")
    return 1


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; its exit code. To receive nothing is no failure here, as with pulsar-perf."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return EXIT_OK if arguments else EXIT_USAGE
    found = COMMANDS.get(arguments[0])
    if found is None:
        known = ", ".join(COMMANDS)
        print(
            f"pulsar-perf: {arguments[0]}: only {known} are here\nTry 'pulsar-perf --help'.", file=sys.stderr
        )
        return EXIT_USAGE
    code = perf.run(kind, found(kind, arguments[1:]))
    return EXIT_OK if code == EXIT_NOTHING else code


def _produce(kind: type[Parser], arguments: Sequence[str]) -> list[str]:
    flags = produce_parser(kind).parse_strictly(arguments)
    own = ["--rate", flags.rate, "--size", flags.size, "--batch", batch_messages(flags)]
    return _words("produce", flags, [*own, "--pending", flags.max_outstanding or 1000])


def batch_messages(flags: argparse.Namespace) -> int:
    """Messages of an entry: those that come within the window, at least one."""
    if flags.disable_batching:
        return 1
    most = int(flags.batch_max_messages)
    in_window = int(flags.rate * flags.batch_time_window / 1000) if flags.rate else most
    return max(1, min(in_window, most))


def _consume(kind: type[Parser], arguments: Sequence[str]) -> list[str]:
    flags = consume_parser(kind).parse_strictly(arguments)
    own = ["--subscription", flags.subscriptions, "--type", flags.subscription_type]
    start = flags.subscription_position.lower()
    return _words("consume", flags, [*own, "--queue", flags.receiver_queue_size, "--from", start])


def _read(kind: type[Parser], arguments: Sequence[str]) -> list[str]:
    flags = read_parser(kind).parse_strictly(arguments)
    return _words(
        "read", flags, ["--queue", flags.receiver_queue_size, "--from", flags.start_message_id.lower()]
    )


def _words(what: str, flags: argparse.Namespace, own: Sequence[Any]) -> list[str]:
    """The line of `geminga perf` that does the same."""
    given = vars(flags)
    without_effect = [
        name.removeprefix("ignored ") for name in given if name.startswith("ignored ") and given[name]
    ]
    if without_effect:
        print(f"pulsar-perf: without effect here: {', '.join(sorted(without_effect))}", file=sys.stderr)
    duration = f"{given['test_duration']}s" if given["test_duration"] else FOR_EVER
    url = ["--url", given["service_url"]] if given["service_url"] else []
    words = [what, given["topic"], "--duration", duration, "--count", given["num_messages"], *url, *own]
    return [str(word) for word in words]


COMMANDS: dict[str, Callable[[type[Parser], Sequence[str]], list[str]]] = {
    "produce": _produce,
    "consume": _consume,
    "read": _read,
}
