"""Deprecated alias of ``otel_rl.bridge.tracker_keys``."""

import sys
import warnings

from otel_rl.bridge import tracker_keys

warnings.warn(
    "otel_rl.bridge.keys is now otel_rl.bridge.tracker_keys.", DeprecationWarning, stacklevel=2
)
sys.modules[__name__] = tracker_keys
