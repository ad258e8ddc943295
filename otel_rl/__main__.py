"""``python -m otel_rl``: the same as the ``otel-rl`` command."""

import sys

from otel_rl.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
