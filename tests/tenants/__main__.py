"""``python -m tests.tenants``. What processes share cannot stand in a ``__main__``."""

import sys

from tests.tenants.command import main

if __name__ == "__main__":
    sys.exit(main())
