#!/usr/bin/env python3
"""Takes the place of the script of that name in Pulsar's images, which writes the environment into files.

The broker reads the environment itself (PULSAR_PREFIX_* and plain keys), so nothing is written and the root
file system may be read-only. Like that script it fails if a file that it is given cannot be read.
"""

import sys

for name in sys.argv[1:]:
    try:
        with open(name, "rb"):
            pass
    except OSError as error:
        sys.exit(f"{name}: {error.strerror}")
