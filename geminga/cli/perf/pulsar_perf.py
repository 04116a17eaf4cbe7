"""`geminga pulsar-perf produce|consume`: pulsar-perf's basic words for `geminga perf`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from geminga.cli.arguments.options import count, positive, rate
from geminga.cli.arguments.parser import EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.perf import perf

FOR_EVER = "3650d"
"""pulsar-perf runs until it is stopped."""
_USAGE = """usage: pulsar-perf produce|consume [FLAGS] TOPIC

Measure rates and latencies of a broker, with the basic flags of Apache Pulsar's pulsar-perf.

  produce   publish messages
  consume   receive them

'pulsar-perf COMMAND --help' lists the flags; 'geminga perf' measures more."""


def produce_parser(kind: type[Parser]) -> Parser:
    made = _parser(kind, "produce", "Publish messages and measure how long it takes.")
    add = made.add_argument
    add("-r", "--rate", type=rate, default=100, help="messages a second (default: 100)")
    add("-s", "--size", type=positive, default=1024, help="bytes of a message (default: 1024)")
    add("-o", "--max-outstanding", type=count, default=1000, help="messages under way (default: 1000)")
    add(
        "-b",
        "--batch-max-messages",
        "-bm",
        type=positive,
        default=1,
        help="messages in an entry (default: 1)",
    )
    return made


def consume_parser(kind: type[Parser]) -> Parser:
    made = _parser(kind, "consume", "Receive messages and measure how long they took.")
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
    return made


def _parser(kind: type[Parser], what: str, text: str) -> Parser:
    made = kind(prog=f"pulsar-perf {what}", description=text)
    made.add_argument("topic", help="the topic")
    made.add_argument("-u", "--service-url", help="pulsar://HOST:PORT or http://HOST:PORT of the broker")
    made.add_argument(
        "-time",
        "--test-duration",
        type=count,
        default=0,
        metavar="SECONDS",
        help="how long; 0 (the default): until it is stopped",
    )
    made.add_argument(
        "-m", "--num-messages", type=count, default=0, help="how many; 0 (the default): by time only"
    )
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return EXIT_OK if arguments else EXIT_USAGE
    found = COMMANDS.get(arguments[0])
    if found is None:
        print(
            f"pulsar-perf: {arguments[0]}: only produce and consume are here\nTry 'pulsar-perf --help'.",
            file=sys.stderr,
        )
        return EXIT_USAGE
    return perf.run(kind, found(kind, arguments[1:]))


def _produce(kind: type[Parser], arguments: Sequence[str]) -> list[str]:
    flags = produce_parser(kind).parse_strictly(arguments)
    own = ["--rate", flags.rate, "--size", flags.size, "--batch", flags.batch_max_messages]
    return _words("produce", flags, [*own, "--pending", flags.max_outstanding or 1000])


def _consume(kind: type[Parser], arguments: Sequence[str]) -> list[str]:
    flags = consume_parser(kind).parse_strictly(arguments)
    own = ["--subscription", flags.subscriptions, "--type", flags.subscription_type]
    start = flags.subscription_position.lower()
    return _words("consume", flags, [*own, "--queue", flags.receiver_queue_size, "--from", start])


def _words(what: str, flags: object, own: Sequence[object]) -> list[str]:
    """The line of `geminga perf` that does the same."""
    given = vars(flags)
    duration = f"{given['test_duration']}s" if given["test_duration"] else FOR_EVER
    url = ["--url", given["service_url"]] if given["service_url"] else []
    words = [what, given["topic"], "--duration", duration, "--count", given["num_messages"], *url, *own]
    return [str(word) for word in words]


COMMANDS: dict[str, Callable[[type[Parser], Sequence[str]], list[str]]] = {
    "produce": _produce,
    "consume": _consume,
}
