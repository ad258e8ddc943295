"""ROLL adapter: a tracker.

otel_rl.integrations.roll.register()        # before the pipeline

track_with: otel_rl
tracker_kwargs: {project: grpo, name: run-1}
"""

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final

from roll.utils import tracking  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    automatically,
    is_instrumented,
    logging_errors,
    start,
)

__all__ = ["NAME", "OtelTracker", "always", "register"]

NAME: Final = "otel_rl"
"""Name of the tracker in ``track_with``."""

_FLUSH_TIMEOUT_S: Final = 5.0

_MARK: Final = "_adds_otel_rl"


class OtelTracker(tracking.BaseTracker):  # type: ignore[misc]  # Any where ROLL is not installed
    """Records metrics, then forwards them.

    Args:
        config: Hyper-parameters.
        project: The experiment, if the environment names none.
        name: The trial, if the environment names no experiment.
        original: Another tracker of the same pipeline.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        project: str | None = None,
        name: str | None = None,
        original: Any = None,
        **_named: object,
    ) -> None:
        start(WorkerNames(project, name, "trainer"))
        self._recorder = Recorder("roll")
        self._recorder.config(config)
        self._original = original

    def log(self, values: Mapping[str, Any], step: int | None = None, **named: Any) -> None:
        """Record a step's metrics without their reducer (``actor/loss@mean``)."""
        self._recorder.record(dict(_flat(values)), step)
        if self._original is not None:
            self._original.log(values=values, step=step, **named)

    def finish(self) -> None:
        """Wait for delivery, then end the other tracker."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        if self._original is not None:
            self._original.finish()


def register() -> None:
    """Make ``track_with`` accept the name ``otel_rl``. Idempotent."""
    tracking.tracker_registry.setdefault(NAME, OtelTracker)


def always() -> None:
    """Make every tracker report, independent of ``track_with``. It never raises then."""
    register()
    original: Callable[..., Any] = tracking.create_tracker
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def create_tracker(tracker_name: str, config: Any, **named: Any) -> Any:
        # ROLL's trackers take what they know out of their keywords.
        names = {key: named.get(key) for key in ("project", "name")}
        tracker = original(tracker_name, config, **named)
        if tracker_name == NAME or is_instrumented():
            return tracker
        found = [tracker]
        with logging_errors(), automatically():
            found.append(OtelTracker(config, original=tracker, **names))
        return found[-1]

    setattr(create_tracker, _MARK, True)
    tracking.create_tracker = create_tracker


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = prefix + key.rpartition("@")[0] if "@" in key else prefix + key
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/")
        else:
            yield name, value
