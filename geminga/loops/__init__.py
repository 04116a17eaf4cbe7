"""The loops that run once for each message, in C: `native` is the compiled module, or None.

`loops.c` is the extension `_geminga_loops`. It has six functions: `pack_records` for the journal's groups,
`scan_sends` and `scan_ack` for received frames, `receipts` and `messages` for those that are sent, and
`peek_entries` for metadata. Each has
a twin in Python that keeps its place in `wire/` and `bookie/`. The twin is what to read, and what runs where
there is no module. The choice is one line at each place: `if native is not None`.

`native` is None where nothing was compiled, where the processor has no instruction for CRC-32C, and with
`GEMINGA_PURE=1`. In a checkout it also is None where the module was made from another `loops.c`, since
checkouts may share an environment. `compile.py` makes the module; it never writes into the package's folder.

Invariants: both ways give equal results for equal arguments. A function returns None for input that it does
not know, and its twin decides then. Every length is checked before a read, and no function keeps a reference
to what it was given. `tests/loops` compares the two ways, under sanitizers and with failing allocations too.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

PURE_VARIABLE = "GEMINGA_PURE"
"""Environment variable: 1 makes Python run although there is a module."""


def _load() -> ModuleType | None:
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return None
    try:
        module = import_module("_geminga_loops")
    except ImportError:
        return None
    try:
        with open(os.path.join(os.path.dirname(__file__), "loops.c"), "rb") as file:
            source = file.read()
    except OSError:
        return module  # an installed package: the two came together
    from hashlib import sha256

    return module if sha256(source).hexdigest().startswith(module.SOURCE) else None


native = _load()
"""The compiled module, or None: then the loops run in Python."""


def kind() -> str:
    """Which loops run: `C` or `Python`."""
    return "Python" if native is None else "C"
