"""Lets tests of this room share their rigs: `from tests.broker.dispatch_rig import ...`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.broker.dispatch_rig import dispatch_rig as dispatch_rig
