"""prime-rl adapter: a ``Monitor``.

    import otel_rl.integrations.prime_rl

    otel_rl.integrations.prime_rl.install()     # before the trainer's or orchestrator's main

A program named ``orchestrator`` has that role, every other is ``trainer``; ``OTEL_RL_ROLE``
overrides it.
"""

import os
import sys
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

from prime_rl import monitors  # type: ignore[import-not-found]  # no dependency
from prime_rl.monitors.base import Monitor  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, automatically, logging_errors, start

__all__ = ["OtelMonitor", "install"]

_FLUSH_TIMEOUT_S: Final = 5.0

_MARK: Final = "_adds_otel_rl"

_ROLES: Final = {"evals": "evaluation", "orchestrator": "orchestrator"}
"""By what a program is named after."""


class OtelMonitor(Monitor):  # type: ignore[misc]  # Any where prime-rl is not installed
    """Records scalar metrics; episodes stay with the other monitors."""

    async def init(self, **_named: object) -> None:
        """Start the worker.

        Raises:
            ConfigError: See ``otel_rl.init``.
        """
        start(WorkerNames(role=_role()))
        self._recorder = Recorder("prime_rl")

    async def log_metrics(self, metrics: Mapping[str, object], step: int) -> None:
        """Record a step's metrics."""
        self._recorder.record(metrics, step)

    async def log_episodes(self, episodes: list[object], step: int, kind: str, subset: str) -> None:
        """Ignore them: a run holds numbers."""

    async def finalize(self) -> None:
        """Wait for delivery; the process may still record."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


def install(*, quietly: bool = False) -> None:
    """Make ``monitors.setup`` add an ``OtelMonitor`` on the first rank. Idempotent.

    Args:
        quietly: True logs a wrong setting instead of raising.
    """
    original = monitors.setup
    if hasattr(original, _MARK):
        return

    @wraps(original)
    async def setup(*arguments: Any, **named: Any) -> None:  # prime-rl's own
        await original(*arguments, **named)
        if not _is_first_rank():
            return
        monitor = OtelMonitor(None)
        if quietly:
            with logging_errors(), automatically():
                await monitor.init()
                monitors.MONITORS.append(monitor)
        else:
            await monitor.init()
            monitors.MONITORS.append(monitor)

    setattr(setup, _MARK, True)
    monitors.setup = setup


def _role() -> str:
    """Return the role from the program's name, since all roles use the same metric names."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    words = f"{Path(sys.argv[0]).name} {getattr(spec, 'name', '')}"
    return next((role for name, role in _ROLES.items() if name in words), "trainer")


def _is_first_rank() -> bool:
    """Report whether prime-rl has monitors in this process."""
    rank = os.environ.get("RANK", os.environ.get("DP_RANK", "0"))
    return not rank.isdecimal() or int(rank) == 0
