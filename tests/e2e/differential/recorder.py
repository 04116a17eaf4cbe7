"""The real broker's answers for every path of its admin API: read, and recorded anew.

    python -m tests.e2e.differential.recorder pulsar://localhost:6650 http://localhost:8080 [PATH...]

asks a real Pulsar 4.0.x (CONTRIBUTING.md, "Recording what Pulsar does"), some minutes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.e2e.differential.cases import cases
from tests.e2e.differential.play import Asked, Player
from tests.recordings.recording import Recording

SETTINGS = {
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "transactionCoordinatorEnabled": "true",
    "clusterName": "standalone",
    "forceDeleteNamespaceAllowed": "false",
    "forceDeleteTenantAllowed": "false",
    "authorizationEnabled": "false",
    "loadBalancerEnabled": "false",
}
RECORDING = Recording(Path(__file__).with_name("recording.json"), SETTINGS)
SETTLING_S = 0.15


def play(service_url: str, web_url: str, names: Sequence[str]) -> dict[str, list[Asked]]:
    player, asked = Player(service_url, web_url, settling_s=SETTLING_S), cases()
    played = {}
    for name in names:
        played[name] = player.play(name, asked[name])
        print(name, [step.status for step in played[name]], flush=True)
    return played


def recorded() -> dict[str, list[Asked]]:
    return {name: [Asked(*step) for step in steps] for name, steps in RECORDING.read().cases.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    RECORDING.main(list(cases()), play, arguments)


if __name__ == "__main__":
    main()
