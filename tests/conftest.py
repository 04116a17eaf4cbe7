"""What all tests share: the same examples in every run, unless a night is asked for.

`GEMINGA_HYPOTHESIS=night pytest tests/...` draws many new examples instead.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("push", derandomize=True, database=None, deadline=None)
settings.register_profile("night", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("GEMINGA_HYPOTHESIS", "push"))

# A shell starts what runs in the background deaf to Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
