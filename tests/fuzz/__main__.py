"""``python -m tests.fuzz``. What processes share cannot stand in a ``__main__``."""

import sys

from tests.fuzz.command import main

if __name__ == "__main__":
    sys.exit(main())
