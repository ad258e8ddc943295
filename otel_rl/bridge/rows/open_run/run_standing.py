"""Present facts of a run for its readers: status, step, workers, attempts."""

from collections.abc import Mapping, Sequence

from otel_rl.bridge.rows.open_run.run_state import RunState
from otel_rl.bridge.rows.open_run.run_values import STANDING_METRICS
from otel_rl.records import Attempt, Device, ExperimentStatus, RoleStanding, WorkerFailure

__all__ = ["RunStanding"]

_NO_METRICS = (
    *("otel_rl.", "hw.", "system.", "rl.host.", "rl.goodput."),
    *(name for name, _ in STANDING_METRICS),
)
"""Prefixes of metrics that a run has without any of its program."""


class RunStanding:
    """Facts of a run, as of its last batch or close. Reads its state and changes nothing."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    @property
    def is_open(self) -> bool:
        """Return whether some samples are in no row yet."""
        intake = self._state.intake
        parts = (intake.steps, intake.windows, intake.tables, self._state.span_window)
        is_told = not (self._state.findings.waiting or intake.warnings)
        return not is_told or any(part.is_open for part in parts)

    @property
    def is_watching(self) -> bool:
        """Return whether time alone may close a row: samples wait, or a worker may be lost.

        After everything was closed, False until the next export.
        """
        return self.is_open or (self._state.is_watching and self._state.liveness.has_living)

    @property
    def status(self) -> ExperimentStatus | None:
        """Return the status of the experiment by its workers; None before the first export."""
        return self._state.liveness.status()

    @property
    def step(self) -> int | None:
        """Return the newest step; None before the first since a restart of the bridge."""
        return self._state.intake.axis.steps.newest

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Return the last attempts after the first, in order, that have a row."""
        return self._state.intake.steps.attempts.with_rows

    @property
    def failures(self) -> Sequence[WorkerFailure]:
        """Return the last failures of workers, in order."""
        return self._state.liveness.failures(self._state.intake.axis.steps.at)

    @property
    def has_metrics(self) -> bool:
        """Return whether a worker has reported a metric besides its standing and its machine's."""
        groups = self._state.intake.series.keys.groups
        return any(not group.name.startswith(_NO_METRICS) for group in groups)

    @property
    def roles(self) -> Mapping[str, RoleStanding]:
        """Return the standing of each role at the last close."""
        return self._state.liveness.roles()

    @property
    def devices(self) -> Mapping[str, Device]:
        """Return the GPUs and hosts that workers report, by the prefix of their keys."""
        return self._state.intake.series.devices.devices
