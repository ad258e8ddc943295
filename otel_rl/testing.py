"""Import this in tests of programs that report: reports go nowhere, and no bridge starts.

    import otel_rl.testing  # in conftest.py

Importing it sets ``OTEL_RL_EMBED`` to ``off`` for the tests and all processes that they start,
unless the variable is set.
"""

import os

os.environ.setdefault("OTEL_RL_EMBED", "off")
