"""`python -m geminga`, and the `geminga` command, which is the same."""

import sys

EXIT_INTERRUPTED = 130
"""As `cli.arguments.parser` has it, of which nothing is imported yet."""


def start() -> int:
    """Run the command line, and return its exit code."""
    try:
        # Here: a Ctrl-C comes within these imports, too.
        from geminga.cli.main import main

        return main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(start())
