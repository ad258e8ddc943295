"""Bounds the files of the processes that write to a tracker, as a full disk does for them alone.

Python imports it at its start if its directory is on PYTHONPATH. What it sets is inherited by the
tracker's helpers.
"""

import os
import resource
import sys
from pathlib import Path

_limit = Path(os.environ.get("FAULTS_FILE_LIMIT", ""))
if "otel_rl.bridge.delivery.writer_main" in sys.orig_argv and _limit.is_file():
    _, _most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(_limit.read_text()), _most))
