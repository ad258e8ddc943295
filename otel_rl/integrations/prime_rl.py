"""prime-rl: a ``Monitor``.

    import otel_rl.integrations.prime_rl

    otel_rl.integrations.prime_rl.install()     # before the trainer's or orchestrator's main

Set ``OTEL_RL_ROLE=orchestrator`` for the orchestrator, because both call their metrics alike.
"""

import os
from collections.abc import Mapping
from functools import wraps
from typing import Any, Final

from prime_rl import monitors  # type: ignore[import-not-found]  # no dependency
from prime_rl.monitors.base import Monitor  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.recorder import Recorder, start
from otel_rl.worker.naming import Who

__all__ = ["OtelMonitor", "install"]

_FLUSH_TIMEOUT_S: Final = 5.0

_MARK: Final = "_adds_otel_rl"


class OtelMonitor(Monitor):  # type: ignore[misc]  # Any where prime-rl is not installed
    """Records scalar metrics; episodes stay with the other monitors."""

    async def init(self, **_named: object) -> None:
        """Start the worker.

        Raises:
            ConfigError: See ``otel_rl.init``.
        """
        start(Who(role="trainer"))
        self._recorder = Recorder("prime_rl")

    async def log_metrics(self, metrics: Mapping[str, object], step: int) -> None:
        """Record a step's metrics."""
        self._recorder.record(metrics, step)

    async def log_episodes(self, episodes: list[object], step: int, kind: str, subset: str) -> None:
        """Nothing: a run gets numbers."""

    async def finalize(self) -> None:
        """Wait for delivery; the process may still record."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


def install() -> None:
    """Let ``monitors.setup`` add an ``OtelMonitor`` on the first rank. Idempotent."""
    original = monitors.setup
    if hasattr(original, _MARK):
        return

    @wraps(original)
    async def setup(*arguments: Any, **named: Any) -> None:  # prime-rl's own
        await original(*arguments, **named)
        if _is_first_rank():
            monitor = OtelMonitor(None)
            await monitor.init()
            monitors.MONITORS.append(monitor)

    setattr(setup, _MARK, True)
    monitors.setup = setup


def _is_first_rank() -> bool:
    """Whether prime-rl has monitors in this process."""
    return int(os.environ.get("RANK", os.environ.get("DP_RANK", "0"))) == 0
