"""`geminga memory`: what a running broker's memory is used for, part by part."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from geminga.cli.arguments.options import add_web_url
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser

PATH = "/geminga/v1/memory"
SECONDS_MAX = 10
MIB = 1024 * 1024


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    parser = kind(prog="geminga memory", description="Show what a running broker's memory is used for.")
    add_web_url(parser)
    parser.add_argument("--json", action="store_true", help="as the broker answers")
    flags = parser.parse_strictly(arguments)
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    from geminga.cli.admin.admin_http import unreachable
    from geminga.cli.client.addresses import web_url
    from geminga.cli.client.errors import ClientError

    try:
        with urlopen(web_url(flags.url) + PATH, timeout=SECONDS_MAX) as response:
            answer = response.read()
        report = json.loads(answer)
    except ClientError as error:
        print(f"geminga memory: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (HTTPError, URLError, OSError, ValueError) as error:
        print(f"geminga memory: {unreachable(flags.url, error)}", file=sys.stderr)
        return EXIT_FAILED
    if flags.json:
        print(answer.decode())
        return EXIT_OK
    print(f"{'PART':15} {'MAY TAKE':>10} {'IN USE':>10}  SET BY")
    for part in report["parts"]:
        name, setting = part["name"].replace("_", " "), part["setting"] or "-"
        print(f"{name:15} {_mib(part['configured_bytes']):>10} {_mib(part['used_bytes']):>10}  {setting}")
        if part["name"] == "process":
            for share in report.get("process", []):
                print(
                    f"  {share['name'].replace('_', ' '):21} {_mib(share['used_bytes']):>10}  {share['text']}"
                )
    resident, budget = report["resident_bytes"], report["budget_bytes"]
    print(f"{'sum':15} {_mib(budget):>10} {_mib(resident) if resident else '?':>10}")
    if resident > budget:
        print(f"\n{_mib(resident - budget)} beyond the budget: what topics, connections and delayed messages")
        print("take has no bound of its own. The process's part is what a broker without load needs.")
    return EXIT_OK


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
