"""``wandb.init``, the run that it returns, and functions that use the run in progress.

A W&B run belongs to one process, an otel_rl run to all processes. So ``job_type``, which
distinguishes the processes of an experiment, becomes the role, and common names become the run's.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from time import time, time_ns
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self, SupportsFloat, SupportsIndex, cast

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.integrations.wandb._absent import INSTEAD, attribute, warn_once
from otel_rl.integrations.wandb._values import Row, Rows, flat_row
from otel_rl.semconv.names import ERROR_TYPE, RlExperimentModeValues
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.starts import MAX_TAGS, MAX_WORD_CHARS, validated_metadata
from otel_rl.worker.identity import WorkerNames, launcher_index, run_word, worker_names
from otel_rl.worker.launch import process_name
from otel_rl.worker.otlp.anyvalue import as_mapping
from otel_rl.worker.session import GUARD, Session, before_end, finished, running
from otel_rl.worker.step_context import current_step
from otel_rl.worker.tensors import NotANumber, as_step, number

__all__ = [
    "Config", "Metric", "Run", "Settings", "Summary", "current", "define_metric", "finish",
    "init", "log", "login", "util", "worker_of",
]  # fmt: skip

_DEFAULT_PROJECT: Final = "uncategorized"
"""W&B's project of a program that names none."""

_IGNORED: Final[Mapping[str, str]] = {
    "mode": "choose online, offline, shared or disabled",
    "resume": "the same project and id or name is the same run",
    "resume_from": "start another trial",
    "fork_from": "start another trial",
    "sync_tensorboard": "call otel_rl.integrations.hook.record_tensorboard()",
}
"""Arguments of ``init`` with a replacement; for all others there is none."""

_MEANT_ANYWAY: Final = (("resume", "allow"), ("resume", "auto"), ("resume", True))
"""Arguments that ask for what the bridge does: the same experiment and trial is the same run."""

_current: "Run | None" = None

# The session that the drop-in has started.
_started: Session | None = None


class Settings(SimpleNamespace):
    """Accepts any setting of W&B; ``init`` logs that settings are ignored."""


class Metric(NamedTuple):
    """Result of ``define_metric``: the metric or pattern, and the metric on its x-axis."""

    name: str
    step_metric: str | None = None


class Config(MutableMapping[str, object]):
    """Hyper-parameters of the run, as items and as attributes. A value may always be changed."""

    def __init__(self, on_change: Callable[[Mapping[str, object]], None] | None = None) -> None:
        self._values: dict[str, object] = {}
        self._on_change = on_change

    def update(  # type: ignore[override]  # W&B's signature, which is narrower
        self, d: object, allow_val_change: bool | None = None
    ) -> None:
        """Merge a dict, ``argparse.Namespace`` or dataclass."""
        del allow_val_change
        new = _config_of(d)
        self._values.update(new)
        if new and self._on_change is not None:
            self._on_change(new)

    def setdefaults(self, d: object) -> None:
        """Merge only missing keys."""
        self.update({k: v for k, v in _config_of(d).items() if k not in self._values})

    def as_dict(self) -> dict[str, object]:
        return dict(self._values)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or name not in self:  # also without state, during a copy
            raise AttributeError(f"there is no {name!r}")
        return self[name]

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self[name] = value

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __setitem__(self, key: str, value: object) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))


class Summary(Config):
    """Reading returns the last committed value. Writing a number sends it to the run."""

    def logged(self, values: Mapping[str, object]) -> None:
        self._values.update(values)

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        measured = number(value)
        # A value that is not a number was written by the program itself.
        return value if isinstance(measured, NotANumber) else measured


def _config_of(given: object) -> dict[str, object]:
    found = {} if given is None else as_mapping(given)
    if found is None:
        warn_once(f"config: a {type(given).__name__} is not supported. Pass a dict.")
        return {}
    return {str(key): value for key, value in found.items()}


def current() -> "Run | None":
    return _current


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
    """Start reporting as a worker, by W&B's arguments, which `otel-rl help wandb` explains.

    Raises:
        ConfigError: A name is invalid, or ``reinit="create_new"``: a process is one worker.
    """
    del allow_val_change, force
    global _current  # W&B's API is one run per process
    if _current is not None:
        if reinit == "create_new":
            raise ConfigError(
                "wandb.init(reinit='create_new'): a process reports for one run at a time.",
                hint="Call finish() first, or start another process.",
            )
        if reinit not in (True, "finish_previous"):
            return _current
        _current.finish()
    environ = os.environ
    is_known = mode in tuple(RlExperimentModeValues)
    is_disabled = (mode or environ.get("WANDB_MODE")) == "disabled"
    given_id = id or environ.get("WANDB_RUN_ID")
    words = tags or environ.get("WANDB_TAGS", "").split(",")
    project_ = run_word(environ, "project", project, environ.get("WANDB_PROJECT"))
    new = Run(
        mode=(mode or "") if is_known else "",
        project=project_ or _DEFAULT_PROJECT,
        name=run_word(environ, "name", name, environ.get("WANDB_NAME")) or "",
        id=given_id or _generate_id(),
        entity=entity or "",
        group=group or environ.get("WANDB_RUN_GROUP") or "",
        job_type=job_type or environ.get("WANDB_JOB_TYPE") or "",
        notes=notes or environ.get("WANDB_NOTES"),
        tags=tuple(filter(None, [words] if isinstance(words, str) else words)),
        dir=os.fspath(dir) if dir is not None else ".",
        disabled=is_disabled,
    )
    if not is_disabled:
        given = WorkerNames(project or None, id or name or None, job_type or None)
        new.start(worker_of(given, environ, process_name()), is_named=bool(given_id))
        others |= {"resume": resume, "resume_from": resume_from, "fork_from": fork_from}
        others |= {"save_code": save_code, "monitor_gym": monitor_gym, "settings": settings}
        others |= {"sync_tensorboard": sync_tensorboard or tensorboard}
        others |= {"mode": None if is_known else mode}
        for argument, value in others.items():
            if value and (argument, value) not in _MEANT_ANYWAY:
                why = _IGNORED.get(argument, "a worker has no use for it")
                warn_once(f"init({argument}=...) is not written to the run: {why}.")
    _current = new
    excluded, included = config_exclude_keys or (), config_include_keys
    new.config.update({
        key: value
        for key, value in _config_of(config).items()
        if key not in excluded and (included is None or key in included)
    })  # fmt: skip
    return new


def worker_of(given: WorkerNames, environ: Mapping[str, str], process_name: str) -> WorkerNames:
    """Return the names of a worker by the arguments of ``init``, or W&B's variables for them.

    A project is the experiment, an id or name the trial, a job type the role.
    """
    project, name, run_id, job_type = (
        environ.get(f"WANDB_{word}") or None for word in ("PROJECT", "NAME", "RUN_ID", "JOB_TYPE")
    )
    stated = WorkerNames(project, run_id or name, job_type)
    found = worker_names(environ, process_name, given=given, stated=stated, finished=finished)
    return found._replace(experiment=found.experiment or _DEFAULT_PROJECT)


class Run:
    """A W&B run from the view of one process; otel_rl merges all of them into one run.

    Thread-safe. Only methods that read from W&B raise. Attributes are those that the program gave.
    """

    id: str
    offline: ClassVar = True  # the bridge decides if the run is written online
    starting_step: ClassVar = 0
    # What a worker does not know.
    resumed: ClassVar = False
    sweep_id: ClassVar = None
    url: ClassVar = None
    project_url: ClassVar = None
    sweep_url: ClassVar = None

    def __init__(self, mode: str, **given: Any) -> None:
        self._is_started = False
        vars(self).update(given)
        self._mode = mode
        self.start_time = time()
        self.config = Config(self._add_config)
        self.summary = Summary(self._record_summary)
        # _lock guards everything below. Re-entrant, so that a signal handler may log.
        self._lock = threading.RLock()
        self._rows = Rows()
        self._is_finished = False

    def start(self, worker: WorkerNames, *, is_named: bool) -> None:
        """Start the worker, unless the program has called ``otel_rl.init`` itself."""
        global _started  # one worker per process
        session = running()
        if session is not None and not session.is_guess:
            self._report()
        else:
            # W&B's users log on one rank, so no count is expected.
            index = launcher_index(os.environ, process_name())
            otel_rl.init(**worker._asdict(), index=index, **self._metadata())
            session = _started = running()
        if session is not None and not is_named:
            self.id = session.identity.trial or self.id  # a later init(id=) resumes it
        self._is_started = True
        before_end.append(self.complete)

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name.startswith("_") or not self._is_started:
            return
        if name in ("notes", "tags"):
            self._report()
        else:
            warn_once(f"run.{name} = ... after init() changes nothing in the run that is written.")

    def __getattr__(self, name: str) -> Any:
        return attribute("run", name)

    @property
    def path(self) -> str:
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def step(self) -> int:
        """Return the step of the next ``log`` without one."""
        return self._rows.step

    def log(
        self,
        data: Mapping[str, object],
        step: SupportsIndex | None = None,
        commit: bool | None = None,
        **_deprecated: object,
    ) -> None:
        """Record numbers, in arbitrarily nested dicts, by W&B's rules. Never raises or waits."""
        with GUARD:
            if not self.disabled:
                self._log(data, step, commit)

    def _log(self, data: object, given: object, commit: bool | None) -> None:
        if not isinstance(data, Mapping):
            why = f"pass a dict (got {type(data).__name__})."
            GUARD.drop(DropReason.NOT_A_NUMBER, f"wandb.log: {why} The call is dropped.")
            return
        logged = flat_row(data, time_ns(), _skip)
        step = as_step(given)
        with self._lock:
            if self._is_finished:
                reason, why = DropReason.NOT_STARTED, "the run is finished."
            elif step is None and given is not None:
                reason = DropReason.BAD_STEP
                why = f"the step must be an integer (got {str(given)[:80]!r})."
            else:
                done = self._rows.add(logged, step, commit=commit, block=current_step())
                if done is not None:
                    self._record(done)
                    return
                reason = DropReason.BAD_STEP
                why = (
                    f"step {step} is below the current step {self.step}; W&B's steps never go "
                    "back. Use otel_rl.log to log out of order."
                )
        GUARD.drop(reason, f"wandb.log: {why} The call is dropped.", logged.size)

    def _record(self, rows: Sequence[Row]) -> None:
        """Send complete rows. The caller holds the lock, so that they leave in order."""
        for row in rows:
            self.summary.logged(row.values)
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

        That holds for the pattern ``*``, and for other patterns if the name of their axis ends with
        "step": all metrics of a run of otel_rl have one axis. A row without the axis of ``*`` has
        the axis's last value. Other arguments are ignored, with a warning.
        """
        del step_sync
        axis = step_metric.name if isinstance(step_metric, Metric) else step_metric
        others |= {"hidden": hidden, "summary": summary, "overwrite": overwrite}
        for argument, value in others.items():
            if value is not None:
                warn_once(f"define_metric({argument}=...) is ignored: set it in W&B's workspace.")
        with self._lock:
            is_step = axis is not None and self._rows.declare(name, axis)
        if axis is not None and not is_step:
            warn_once(
                f"define_metric({name!r}, step_metric={axis!r}): every metric of a run has one "
                f"axis, the step, so {axis!r} is written as a metric like any other. Choose it as "
                "the x-axis in W&B's workspace, or pass it as step=."
            )
        return Metric(name, axis)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Complete the last row, and end this process's part of the run. Never raises.

        The call waits up to five seconds for each answer of the bridge. The common run continues
        until all its processes are done with it. After an exit code other than 0 the worker counts
        as failed.
        """
        del quiet
        global _current  # W&B's API is one run per process
        if _current is self:
            _current = None
        with GUARD:
            with self._lock:
                was_finished, self._is_finished = self._is_finished, True
                if self.disabled or was_finished:
                    return
                self.complete()
            before_end.remove(self.complete)
            session = running()
            if session is None:
                return
            if exit_code is not None:
                failure = {ERROR_TYPE: f"exit status {exit_code}"} if exit_code else None
                session.exit_report.failure = failure
            if session is _started:
                otel_rl.finish()
            else:
                otel_rl.flush()

    def complete(self) -> None:
        with GUARD, self._lock:
            self._record(self._rows.complete())

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
        """Return the arguments of ``otel_rl.init`` about the run.

        Tags that it would refuse are cut.
        """
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
            if not self.disabled:
                _send(flat_row(written, time_ns(), _skip_of_summary), None, "last")


def _skip(name: str, kind: str) -> None:
    GUARD.not_a_number(name, kind, INSTEAD)


def _skip_of_summary(name: str, _kind: str) -> None:
    warn_once(f"summary[{name!r}] is kept in this process: only numbers are supported.")


def _send(row: Row, step: object, reduce: str | None = None) -> None:
    """Send a row at any step that the program gave; an invalid step is counted."""
    at = cast("int | None", step)
    if row.values:
        values = cast("Mapping[str, SupportsFloat]", row.values)  # flat_row lets nothing else in
        otel_rl.log(values, at, reduce, at_ns=row.time_ns)
    for name, samples in row.tables.items():
        otel_rl.log_samples(samples, at, name)


def _word(given: object) -> str:
    text = "".join(char if char.isprintable() else " " for char in str(given))
    return text.strip()[:MAX_WORD_CHARS].strip()


def _generate_id(length: int = 8) -> str:
    return secrets.token_hex(length)[:length]


util: Final = SimpleNamespace(generate_id=_generate_id)
"""``wandb.util``."""


def log(
    data: Mapping[str, object],
    step: SupportsIndex | None = None,
    commit: bool | None = None,
    **_deprecated: object,
) -> None:
    """Log to the run in progress. Never raises: without a run the call is counted and dropped."""
    if _current is not None:
        _current.log(data, step, commit)
    else:
        given: object = data
        GUARD.drop(
            DropReason.NOT_STARTED,
            "wandb.log was called before wandb.init() or after wandb.finish(); it is dropped.",
            len(given) if isinstance(given, Mapping) else 1,
        )


def define_metric(name: str, *arguments: Any, **named: Any) -> Metric:
    """Define a metric of the run in progress, see ``Run.define_metric``; else do nothing."""
    if _current is not None:
        return _current.define_metric(name, *arguments, **named)
    warn_once("define_metric before init() does nothing.")
    return Metric(name)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish the run for this process, see ``Run.finish``; without a run do nothing."""
    if _current is not None:
        _current.finish(exit_code, quiet)


def login(*_arguments: object, **_named: object) -> bool:
    """Return True: a worker needs no key, because the bridge has it."""
    return True


def _start_in_child() -> None:
    if _current is not None:
        _current.start_in_child()


os.register_at_fork(after_in_child=_start_in_child)
