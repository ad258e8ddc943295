"""W&B run from the view of one process; otel_rl merges all of them into one run."""

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import util as multiprocessing_util
from time import time, time_ns
from types import TracebackType
from typing import Any, ClassVar, Self, SupportsIndex
from weakref import WeakSet

from otel_rl.integrations.wandb import _session, _tensorboard
from otel_rl.integrations.wandb._config import Config
from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._logged.axes import Axes
from otel_rl.integrations.wandb._logged.rows import Row, Rows
from otel_rl.integrations.wandb._logged.table import Tables
from otel_rl.integrations.wandb._logged.values import flat_row
from otel_rl.integrations.wandb._run_metadata import About, Given
from otel_rl.integrations.wandb._session import DropReason, guard
from otel_rl.integrations.wandb._skipped import MEDIA_HINT, report_skipped
from otel_rl.integrations.wandb._stand_ins.media import ignored, refused
from otel_rl.integrations.wandb._stand_ins.stand_in import is_optional, stand_in
from otel_rl.integrations.wandb._summary import Summary
from otel_rl.worker.child_threads import join_threads_of_child
from otel_rl.worker.tensors import as_step

__all__ = ["Metric", "Run"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Result of ``define_metric``.

    Attributes:
        name: The metric, or a pattern.
        step_metric: The metric on its x-axis.
    """

    name: str
    step_metric: str | None = None


class Run:
    """W&B's ``Run``. Thread-safe; only ``use_...`` and ``restore`` raise.

    Args:
        about: Metadata from the program.
    """

    project = Given[str]()
    name = Given[str]()
    id = Given[str]()
    entity = Given[str]()
    group = Given[str]()
    job_type = Given[str]()
    notes = Given[str | None](is_reported=True)
    tags = Given[tuple[str, ...]](is_reported=True)
    dir = Given[str]()
    disabled = Given[bool]()
    offline: ClassVar = True
    """The bridge decides if the run is written online."""
    resumed: ClassVar = False
    """Unknown to a worker."""
    sweep_id: ClassVar = None
    """Sweeps are W&B's own."""
    starting_step: ClassVar = 0
    """Rows are counted from here."""
    url: ClassVar = None
    """Unknown to this process; the bridge's run has one."""
    _attach_id: ClassVar = None
    """Lightning would use it to join the run of another process."""

    def __init__(self, about: About) -> None:
        self.about = about
        self._rows = Rows()
        self._tables = Tables()
        self._axes = Axes()
        self._finished = False
        # _lock guards the four above. Re-entrant, so that a signal handler may log.
        self._lock = threading.RLock()
        self.start_time = time()
        self.config = Config(self._add_config)
        self.summary = Summary(self._record_summary)
        if not about.disabled:
            atexit.register(self.complete)
            _complete_at_end_of_multiprocessing_child(self)
            multiprocessing_util.register_after_fork(
                self, _complete_at_end_of_multiprocessing_child
            )
            _live.add(self)

    @property
    def is_finished(self) -> bool:
        """Report whether ``finish`` was called."""
        return self._finished

    @property
    def path(self) -> str:
        """Entity, project and id."""
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def step(self) -> int:
        """Step of the next ``log`` without one."""
        return self._rows.step

    def get_url(self) -> None:
        """Return None, see ``url``."""

    def log(
        self,
        data: Mapping[str, object],
        step: SupportsIndex | None = None,
        commit: bool | None = None,
        **_deprecated: object,
    ) -> None:
        """Record numbers by W&B's step rules. Never raises, never waits.

        Args:
            data: Names to numbers, nested arbitrarily.
            step: Step of the row; None for that of the ``otel_rl.step`` block around the call, or
                for one more than that of the last row.
            commit: True completes the row; the default without a step and outside of blocks.
        """
        with guard:
            if self.about.disabled:
                return
            logged = self._flat(data)
            if logged is None:
                return
            with self._lock:
                if self._finished:
                    warn_once("log after finish() is dropped.")
                    guard.drops.add(DropReason.NOT_STARTED, len(logged.values))
                    return
                self._record(self._add(logged, step, commit))

    def define_metric(
        self,
        name: str,
        step_metric: "str | Metric | None" = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> Metric:
        """Use ``step_metric`` as the step of rows in which it is; warn about one that is no step.

        Args:
            name: A metric or a pattern.
            step_metric: The metric whose values are the steps, for the pattern ``*`` or by a name
                that ends with "step".
            step_sync: Ignored: a row without the step metric of ``*`` has its last value.
            hidden: Ignored.
            summary: Ignored: a run's summary holds last values.
            goal: Ignored.
            overwrite: Ignored.
        """
        del step_sync
        axis = step_metric.name if isinstance(step_metric, Metric) else step_metric
        for argument, value in (
            ("hidden", hidden),
            ("summary", summary),
            ("goal", goal),
            ("overwrite", overwrite),
        ):
            if value is not None:
                warn_once(f"define_metric({argument}=...) is ignored: set it in W&B's workspace.")
        with self._lock:
            is_step = axis is not None and self._axes.declare(name, axis)
        if axis is not None and not is_step:
            warn_once(
                f"define_metric({name!r}, step_metric={axis!r}): every metric of a run has one "
                f"axis, the step, so {axis!r} is written as a metric like any other. Choose it as "
                "the x-axis in W&B's workspace, or pass it as step=."
            )
        return Metric(name, axis)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Complete the last row, and end this process's part of the run. Never raises.

        It waits up to five seconds for the delivery. The common run continues until all of its
        processes are done with it.

        Args:
            exit_code: Other than 0, the worker reports a failure at its end.
            quiet: Ignored.
        """
        del quiet
        with guard:
            with self._lock:
                was_finished, self._finished = self._finished, True
                if self.about.disabled or was_finished:
                    return
                self.complete()
            _tensorboard.stop()
            if exit_code is not None:
                _session.set_failure(f"exit status {exit_code}" if exit_code else None)
            atexit.unregister(self.complete)
            _live.discard(self)
            _session.leave()

    def status(self) -> None:
        """Do nothing: the state of W&B's upload is unknown to a worker."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    alert = ignored("alert", "a worker has no W&B to send it.")
    display = ignored("display", "the run is the bridge's.")
    finish_artifact = ignored("finish_artifact", MEDIA_HINT)
    link_artifact = ignored("link_artifact", MEDIA_HINT)
    link_model = ignored("link_model", MEDIA_HINT)
    log_artifact = ignored("log_artifact", MEDIA_HINT)
    log_code = ignored("log_code", MEDIA_HINT)
    log_model = ignored("log_model", MEDIA_HINT)
    mark_preempting = ignored("mark_preempting", "the run goes on while any process reports.")
    pin_config_keys = ignored("pin_config_keys", "set it in W&B's workspace.")
    save = ignored("save", MEDIA_HINT)
    unwatch = ignored("unwatch", "nothing is watched.")
    upsert_artifact = ignored("upsert_artifact", MEDIA_HINT)
    watch = ignored("watch", "log gradients as wandb.Histogram, or their norm.")
    restore = refused("restore", "it reads from W&B. Use the wandb package for it.")
    use_artifact = refused("use_artifact", "it reads from W&B. Use the wandb package for it.")
    use_model = refused("use_model", "it reads from W&B. Use the wandb package for it.")

    def __getattr__(self, name: str) -> Any:
        """Return a placeholder that does nothing, for other attributes of W&B's run."""
        if is_optional(name):
            raise AttributeError(name)
        return stand_in(f"run.{name}")

    def _flat(self, data: object) -> Row | None:
        if not isinstance(data, Mapping):
            guard.drop(
                DropReason.NOT_A_NUMBER,
                f"wandb.log: pass a dict (got {type(data).__name__}). The call is dropped.",
            )
            return None
        row, skipped = flat_row(data, time_ns())
        if skipped:
            report_skipped(skipped)
        return row

    def _add(self, logged: Row, given: SupportsIndex | None, commit: bool | None) -> list[Row]:
        """Return the rows completed by this call. The caller holds the lock."""
        step = None if given is None else as_step(given)
        if step is None and given is not None:
            guard.drop(
                DropReason.BAD_STEP,
                f"wandb.log: the step must be an integer (got {str(given)[:80]!r}). "
                "The call is dropped.",
                len(logged.values),
            )
            return []
        done = self._rows.add(logged, step, commit=commit, block=_session.current_step())
        if done is None:
            guard.drop(
                DropReason.BAD_STEP,
                f"wandb.log: step {step} is below the current step {self._rows.step}; W&B's steps "
                "never go back. The call is dropped. Use otel_rl.log to log out of order.",
                len(logged.values),
            )
            return []
        return done

    def _record(self, rows: Sequence[Row]) -> None:
        """Send complete rows. The caller holds the lock, so that they leave in order."""
        for row in rows:
            self._axes.set_step(row)
            self.summary.logged(row.values)
            row.tables = {
                name: self._tables.news(name, samples) for name, samples in row.tables.items()
            }
            _session.record(row)

    def report_metadata(self) -> None:
        """Set the run's notes and tags, and all else that ``init`` was given."""
        with guard:
            if not self.about.disabled:
                _session.report_metadata(self.about)

    def _add_config(self, new: Mapping[str, object]) -> None:
        if not self.about.disabled:
            _session.add_config(new)

    def _record_summary(self, written: Mapping[str, object]) -> None:
        with guard:
            if not self.about.disabled:
                row, _ = flat_row(dict(written), time_ns())
                if row:
                    _session.record_summary(row)
                else:
                    warn_once(
                        f"summary[{next(iter(written))!r}] is kept in this process: "
                        "only numbers are supported."
                    )

    def start_in_child(self) -> None:
        """Reset in a forked child: the parent sends the pending row."""
        self._lock = threading.RLock()
        self._rows.forget()

    def complete(self) -> None:
        """Send the pending row."""
        with guard, self._lock:
            self._record(self._rows.finish())


# Runs that a forked child inherits.
_live: "WeakSet[Run]" = WeakSet()


def _start_in_child() -> None:
    for run in tuple(_live):
        run.start_in_child()


os.register_at_fork(after_in_child=_start_in_child)


def _complete_at_end_of_multiprocessing_child(run: Run) -> None:
    """Complete the run in a child that ends with ``os._exit``, which skips atexit.

    The priority is before that of otel_rl's own finalizer, which sends the records.
    """

    def complete() -> None:
        try:
            join_threads_of_child()
        finally:  # Ctrl-C ends the wait
            run.complete()

    multiprocessing_util.Finalize(None, complete, exitpriority=-50)
