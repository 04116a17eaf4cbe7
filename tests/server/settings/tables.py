"""All rows together, and a broker.conf with every key in it."""

from __future__ import annotations

from pathlib import Path

from tests.server.settings.admin_rows import ADMIN_ROWS
from tests.server.settings.broker_rows import (
    DELAY_ROWS,
    LEDGER_ROWS,
    POLICY_ROWS,
    SUBSCRIPTION_ROWS,
    TOPIC_ROWS,
)
from tests.server.settings.process_rows import ADDRESS_ROWS, BOOKIE_ROWS, DELIVERY_LOG_ROWS, MEMORY_ROWS

ROOM_ROWS = [
    *TOPIC_ROWS,
    *POLICY_ROWS,
    *SUBSCRIPTION_ROWS,
    *DELAY_ROWS,
    *LEDGER_ROWS,
    *BOOKIE_ROWS,
    *MEMORY_ROWS,
    *ADDRESS_ROWS,
    *DELIVERY_LOG_ROWS,
]


def every_key(root: Path) -> dict[str, str]:
    """All keys at once, each with another value than its default; directories are below `root`."""
    keys = {row.key: row.value for row in (*ROOM_ROWS, *ADMIN_ROWS)}
    return {
        **keys,
        "journalDirectories": f"{root}/j1,{root}/j2",
        "ledgerDirectories": f"{root}/l1,{root}/l2,{root}/l3",
        "gemingaDeliveryLogDirectory": f"{root}/delivery-log",
    }
