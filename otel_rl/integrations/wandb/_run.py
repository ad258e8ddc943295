"""``wandb.init``, the run that it returns, and functions that use the run in progress.

A W&B run belongs to one process, an otel_rl run to all processes. So ``job_type``, which
distinguishes the processes of an experiment, becomes the role, and common names become the run's.
"""

import os
import secrets
import string
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import time, time_ns
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar, Final, Self, SupportsFloat, SupportsIndex, cast

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.integrations.hook import Writers
from otel_rl.integrations.wandb._absent import INSTEAD, attribute, warn_once
from otel_rl.integrations.wandb._config import Config, Summary, config_of
from otel_rl.integrations.wandb._rows import Axes, Rows
from otel_rl.integrations.wandb._values import Histogram, Row, Tables, flat_row
from otel_rl.semconv.names import RlExperimentModeValues
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.exit_report import Failure
from otel_rl.worker.events.run_metadata import MAX_TAGS, MAX_WORD_CHARS, validated_metadata
from otel_rl.worker.identity.launcher import process_name
from otel_rl.worker.identity.names import WorkerNames, named_place, run_word, worker_names
from otel_rl.worker.identity.rank import launcher_index
from otel_rl.worker.session import GUARD, Session, before_end, finished, running
from otel_rl.worker.step_context import current_step
from otel_rl.worker.tensors import as_step

__all__ = [
    "Metric", "Run", "Settings", "current", "define_metric", "finish", "generate_id", "init",
    "log", "login", "tensorboard", "worker_of",
]  # fmt: skip

_DEFAULT_PROJECT: Final = "uncategorized"
"""W&B's project of a program that names none."""

_IGNORED: Final[Mapping[str, str]] = {
    "mode": "choose online, offline, shared or disabled",
    "resume": "the same project and id or name is the same run",
    "resume_from": "start another trial",
    "fork_from": "start another trial",
}
"""Arguments of ``init`` with a replacement; for all others there is none."""

_MEANT_ANYWAY: Final = (("resume", "allow"), ("resume", "auto"), ("resume", True))
"""Arguments that ask for what the bridge does: the same experiment and trial is the same run."""

_MODES: Final = {"dryrun": "offline", "run": "online"}
"""W&B's former words."""

_REPORTED: Final = frozenset({"notes", "tags"})
_KEPT: Final = frozenset({"dir", "entity", "group", "id", "job_type", "name", "project"})
"""Attributes of a run that a program may set: in the run that is written, or for itself only."""

_current: "Run | None" = None

# The session that the drop-in has started.
_started: Session | None = None

_writers: Writers | None = None


class Settings(SimpleNamespace):
    """Accepts any setting of W&B; ``init`` logs that they are ignored."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Result of ``define_metric``.

    Attributes:
        name: The metric, or a pattern.
        step_metric: The metric on its x-axis.
    """

    name: str
    step_metric: str | None = None


def current() -> "Run | None":
    """Return the run in progress."""
    return None if _current is None or _current.is_finished else _current


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: "str | os.PathLike[str] | None" = None,  # noqa: A002  # W&B's word
    id: str | None = None,  # noqa: A002  # W&B's word
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    config: object = None,
    config_exclude_keys: Sequence[str] | None = None,
    config_include_keys: Sequence[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: bool | str | None = None,
    resume: bool | str | None = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: object = None,
    **others: object,
) -> "Run":
    """Start reporting as a worker, by W&B's arguments. `otel-rl help wandb` says what each becomes.

    Raises:
        ConfigError: A name is invalid, or ``reinit="create_new"``: a process is one worker.
    """
    del allow_val_change, force
    global _current  # W&B's API is one run per process
    if (run := current()) is not None:
        if reinit == "create_new":
            raise ConfigError(
                "wandb.init(reinit='create_new'): a process reports for one run at a time.",
                hint="Call finish() first, or start another process.",
            )
        if reinit not in (True, "finish_previous"):
            return run
        finish()
    environ = os.environ
    known_mode = _MODES.get(mode or "", mode or "")
    is_known = known_mode in tuple(RlExperimentModeValues)
    is_disabled = (mode or environ.get("WANDB_MODE")) == "disabled"
    given_id = id or environ.get("WANDB_RUN_ID")
    words = tags or environ.get("WANDB_TAGS", "").split(",")
    project_ = run_word(environ, "project", project, environ.get("WANDB_PROJECT"))
    new = Run(
        {
            "project": project_ or _DEFAULT_PROJECT,
            "name": run_word(environ, "name", name, environ.get("WANDB_NAME")) or "",
            "id": given_id or generate_id(),
            "entity": entity or "",
            "group": group or environ.get("WANDB_RUN_GROUP") or "",
            "job_type": job_type or environ.get("WANDB_JOB_TYPE") or "",
            "notes": notes or environ.get("WANDB_NOTES"),
            "tags": tuple(filter(None, [words] if isinstance(words, str) else words)),
            "dir": os.fspath(dir) if dir is not None else ".",
            "disabled": is_disabled,
        },
        known_mode if is_known else "",
    )
    if not is_disabled:
        given = WorkerNames(project or None, id or name or None, job_type or None)
        new.start(worker_of(given, environ, process_name()), is_named=bool(given_id))
        others |= {"resume": resume, "resume_from": resume_from, "fork_from": fork_from}
        others |= {"save_code": save_code, "monitor_gym": monitor_gym, "settings": settings}
        _warn_ignored({**others, "mode": None if is_known else mode})
        if sync_tensorboard or tensorboard or getattr(settings, "sync_tensorboard", False):
            _follow_writers()
    _current = new
    excluded, included = config_exclude_keys or (), config_include_keys
    new.config.update({
        key: value
        for key, value in config_of(config).items()
        if key not in excluded and (included is None or key in included)
    })  # fmt: skip
    return new


def worker_of(given: WorkerNames, environ: Mapping[str, str], process_name: str) -> WorkerNames:
    """Return the names of a worker by the arguments of ``init``, or W&B's variables for them.

    Args:
        given: The project is the experiment, the id or name the trial, the job type the role.
        environ: The process's environment.
        process_name: From its launcher.

    Raises:
        ConfigError: A name is invalid.
    """
    project, name, run_id, job_type = (
        environ.get(f"WANDB_{word}") or None for word in ("PROJECT", "NAME", "RUN_ID", "JOB_TYPE")
    )
    stated = WorkerNames(project, run_id or name, job_type)
    found = worker_names(environ, process_name, given=given, stated=stated, finished=finished)
    return replace(found, experiment=found.experiment or _DEFAULT_PROJECT)


def _warn_ignored(given: Mapping[str, object]) -> None:
    for argument, value in given.items():
        if value and (argument, value) not in _MEANT_ANYWAY:
            why = _IGNORED.get(argument, "a worker has no use for it")
            warn_once(f"init({argument}=...) is not written to the run: {why}.")


class Run:
    """W&B run from the view of one process; otel_rl merges all of them into one run.

    Thread-safe. Only what reads from W&B raises. Attributes are those that the program gave.
    """

    id: str
    offline: ClassVar = True  # the bridge decides if the run is written online
    starting_step: ClassVar = 0
    # What a worker does not know; by the last one Lightning would join the run of another process.
    resumed: ClassVar = False
    sweep_id: ClassVar = None
    url: ClassVar = None
    _attach_id: ClassVar = None

    def __init__(self, given: Mapping[str, Any], mode: str) -> None:
        self._is_started = False
        vars(self).update(given)
        self._mode = mode
        self.start_time = time()
        self.config = Config(self._add_config)
        self.summary = Summary(self._record_summary)
        # _lock guards everything below. Re-entrant, so that a signal handler may log.
        self._lock = threading.RLock()
        self._rows = Rows()
        self._tables = Tables()
        self._axes = Axes()
        self.is_finished = False

    def start(self, worker: WorkerNames, *, is_named: bool) -> None:
        """Start the worker, unless the program has called ``otel_rl.init`` itself."""
        global _started  # one worker per process
        session = running()
        if session is not None and not session.is_guess:
            self._report()
        else:
            # W&B's users log on one rank, so no count is expected.
            index = launcher_index(os.environ, named_place(process_name())[1])
            otel_rl.init(**asdict(worker), index=index, **self._metadata())
            session = _started = running()
        if session is not None and not is_named:
            self.id = session.identity.trial or self.id  # a later init(id=) resumes it
        self._is_started = True
        before_end.append(self.complete)

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in _REPORTED and self._is_started:
            self._report()
        elif name in _KEPT and self._is_started:
            warn_once(f"run.{name} = ... after init() changes nothing in the run that is written.")

    def __getattr__(self, name: str) -> Any:
        """Return a placeholder that does nothing, for other attributes of W&B's run."""
        return attribute("run", name)

    @property
    def path(self) -> str:
        """Entity, project and id."""
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def step(self) -> int:
        """Step of the next ``log`` without one."""
        return self._rows.step

    def log(
        self,
        data: Mapping[str, object],
        step: SupportsIndex | None = None,
        commit: bool | None = None,
        **_deprecated: object,
    ) -> None:
        """Record numbers, in arbitrarily nested dicts, by W&B's step rules, see ``Rows``.

        Never raises, never waits.
        """
        with GUARD:
            if self.disabled:
                return
            given: object = data
            if not isinstance(given, Mapping):
                message = f"pass a dict (got {type(given).__name__}). The call is dropped."
                GUARD.drop(DropReason.NOT_A_NUMBER, f"wandb.log: {message}")
                return
            logged = flat_row(given, time_ns(), _skip)
            with self._lock:
                if self.is_finished:
                    warn_once("log after finish() is dropped.")
                    GUARD.drops.add(DropReason.NOT_STARTED, len(logged.values))
                else:
                    self._record(self._completed(logged, step, commit))

    def _completed(self, logged: Row, given: object, commit: bool | None) -> list[Row]:
        """Return the rows completed by this call. The caller holds the lock."""
        step = as_step(given)
        if step is None and given is not None:
            why = f"the step must be an integer (got {str(given)[:80]!r}). The call is dropped."
        else:
            done = self._rows.add(logged, step, commit=commit, block=current_step())
            if done is not None:
                return done
            why = (
                f"step {step} is below the current step {self._rows.step}; W&B's steps never go "
                "back. The call is dropped. Use otel_rl.log to log out of order."
            )
        GUARD.drop(DropReason.BAD_STEP, f"wandb.log: {why}", len(logged.values))
        return []

    def _record(self, rows: Sequence[Row]) -> None:
        """Send complete rows. The caller holds the lock, so that they leave in order."""
        for row in rows:
            self._axes.set_step(row)
            self.summary.logged(row.values)
            row.tables = {
                name: self._tables.news(name, samples) for name, samples in row.tables.items()
            }
            _send(row, row.step)

    def define_metric(
        self,
        name: str,
        step_metric: "str | Metric | None" = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        overwrite: bool | None = None,
        **others: object,
    ) -> Metric:
        """Use ``step_metric`` as the step of the rows that have it.

        That is so for the pattern ``*``, and for others by a name that ends with "step": all
        metrics of a run of otel_rl have one axis. A row without the axis of ``*`` has its last
        value. What else is given is ignored, with a warning.
        """
        del step_sync
        axis = step_metric.name if isinstance(step_metric, Metric) else step_metric
        others |= {"hidden": hidden, "summary": summary, "overwrite": overwrite}
        for argument, value in others.items():
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
        processes are done with it. After an exit code other than 0 the worker has failed.
        """
        del quiet
        with GUARD:
            with self._lock:
                was_finished, self.is_finished = self.is_finished, True
                if self.disabled or was_finished:
                    return
                self.complete()
            _stop_following()
            before_end.remove(self.complete)
            session = running()
            if session is None:
                return
            if exit_code is not None:
                failure = Failure(f"exit status {exit_code}") if exit_code else None
                session.exit_report.failure = failure
            end = otel_rl.finish if session is _started else otel_rl.flush
            end(timeout_s=session.settings.exit_timeout_s)

    def complete(self) -> None:
        """Send the pending row."""
        with GUARD, self._lock:
            self._record(self._rows.finish())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    def start_in_child(self) -> None:
        """Reset in a forked child: the parent sends the pending row."""
        self._lock = threading.RLock()
        self._rows.forget()

    def _metadata(self) -> dict[str, Any]:
        """Return what ``otel_rl.init`` takes about the run: no run may fail for its tags."""
        project = "" if self.project == _DEFAULT_PROJECT else self.project
        words = {"group": self.group, "job_type": self.job_type, "project": project}
        words |= {"entity": self.entity, "name": self.name}
        return {
            "notes": self.notes,
            "tags": [_word(tag) for tag in self.tags if tag][:MAX_TAGS],
            "mode": self._mode,
            **{argument: _word(word) for argument, word in words.items()},
        }

    def _report(self) -> None:
        with GUARD:
            session = running()
            metadata = validated_metadata(GUARD, **self._metadata())
            if session is not None and metadata:
                session.report_start(metadata)

    def _add_config(self, new: Mapping[str, object]) -> None:
        if not self.disabled:
            otel_rl.log_config(new)

    def _record_summary(self, written: Mapping[str, object]) -> None:
        with GUARD:
            if self.disabled:
                return
            unsupported: dict[str, str] = {}
            _send(flat_row(written, time_ns(), unsupported.__setitem__), None, "last")
            for name in unsupported:
                warn_once(f"summary[{name!r}] is kept in this process: only numbers are supported.")


def _skip(name: str, kind: str) -> None:
    GUARD.not_a_number(name, kind, INSTEAD)


def _send(row: Row, step: object, reduce: str | None = None) -> None:
    """Send a row at any step as the program gave it; an invalid one is counted."""
    at = cast("int | None", step)
    for reduction, values in ((reduce, row.values), *row.extremes.items()):
        if values:
            numbers = cast("Mapping[str, SupportsFloat]", values)  # flat_row lets nothing else in
            otel_rl.log(numbers, at, reduction, at_ns=row.time_ns)
    for name, samples in row.tables.items():
        otel_rl.log_samples(samples, at, name)


def _log_written(values: Mapping[str, object], step: object, time_ns: int) -> None:
    _send(flat_row(values, time_ns, _skip), step)


def _log_hyper_parameters(config: Mapping[str, object], metrics: Mapping[str, object]) -> None:
    otel_rl.log_config(config)
    _send(flat_row(metrics, time_ns(), _skip), None, "last")


def _word(given: object) -> str:
    """Convert text to the form of ``init``."""
    text = "".join(char if char.isprintable() else " " for char in str(given))
    return text.strip()[:MAX_WORD_CHARS].strip()


def generate_id(length: int = 8) -> str:
    """Generate random lower-case letters and digits, like ``wandb.util.generate_id``."""
    alphabet = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(length))


def log(
    data: Mapping[str, object],
    step: SupportsIndex | None = None,
    commit: bool | None = None,
    **_deprecated: object,
) -> None:
    """Log to the run in progress. Never raises: without a run the call is counted and dropped."""
    if (run := current()) is not None:
        run.log(data, step, commit)
    else:
        GUARD.drop(
            DropReason.NOT_STARTED,
            "wandb.log was called before wandb.init() or after wandb.finish(); it is dropped.",
            _size(data),
        )


def _size(data: object) -> int:
    return len(data) if isinstance(data, Mapping) else 1


def define_metric(
    name: str,
    step_metric: str | Metric | None = None,
    step_sync: bool | None = None,
    hidden: bool | None = None,
    summary: str | None = None,
    overwrite: bool | None = None,
    **others: object,
) -> Metric:
    """Define a metric of the run in progress; without a run do nothing."""
    if (run := current()) is None:
        warn_once("define_metric before init() does nothing.")
        return Metric(name)
    return run.define_metric(name, step_metric, step_sync, hidden, summary, overwrite, **others)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish the run for this process: wait up to five seconds for delivery. Never raises."""
    global _current  # W&B's API is one run per process
    ended, _current = _current, None
    if ended is not None:
        ended.finish(exit_code, quiet)


def login(*_arguments: object, **_named: object) -> bool:
    """Return True: a worker needs no key, the bridge has it."""
    return True


def _follow_writers(*_arguments: object, **_named: object) -> None:
    """Also log the values of each ``SummaryWriter``, at any step, until the run is finished."""
    global _writers  # one run per process
    if _writers is None:
        _writers = Writers(_log_written, _log_hyper_parameters, Histogram)


def _stop_following() -> None:
    global _writers  # see _follow_writers
    if _writers is not None:
        _writers.stop()
        _writers = None


tensorboard: Final = SimpleNamespace(patch=_follow_writers, unpatch=_stop_following)
"""``wandb.tensorboard``."""


def _start_in_child() -> None:
    if _current is not None:
        _current.start_in_child()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_start_in_child)
