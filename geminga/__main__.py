"""`python -m geminga`: the same as the `geminga` command."""

import sys

from geminga.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
