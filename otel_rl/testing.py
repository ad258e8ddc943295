"""For tests of programs that report: what they report goes nowhere, and no bridge starts.

    import otel_rl.testing  # in conftest.py

``OTEL_RL_EMBED`` is then ``off`` for the tests and all that they start, unless it is set.
"""

import os

os.environ.setdefault("OTEL_RL_EMBED", "off")
