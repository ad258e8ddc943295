"""Records what a library logs by itself: to W&B, to TensorBoard, or by a ``log(dict, step)``.

In a program, before ``wandb.init`` or the first ``SummaryWriter``:

    otel_rl.integrations.hook.record_wandb(step_keys=["train/step", "rollout/step"])
    otel_rl.integrations.hook.record_tensorboard()

In an adapter, around a function of its framework:

    hook = Hook("my_framework")  # its table of names is semconv/dialects/my_framework.toml

    def log(logger, metrics, step):  # has the parameters of the framework's own
        hook.start(WorkerNames(logger.project, role="trainer"))
        hook.record(metrics, step)

    hook.before(framework.Logger, "log", log)
    hook.before(framework.Logger, "close", lambda logger: hook.flush())

The library's own run, file or screen is what it was.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import PurePath
from time import time_ns
from types import ModuleType
from typing import Any, Final, Protocol

from otel_rl.errors import OtelRLError
from otel_rl.integrations.adapter import (
    Dialect,
    Recorder,
    Table,
    WorkerNames,
    automatic,
    current_step,
    deliver,
    guard,
    logging_errors,
    start,
    when_imported,
)
from otel_rl.integrations.frameworks import present

__all__ = ["Hook", "Writers", "record_tensorboard", "record_wandb"]

_NO_NAMES: Final = WorkerNames()

_MAX_DEPTH: Final = 32
"""Deeper nesting indicates an object graph, possibly circular, instead of metrics."""

_last: Final[dict[str, tuple[str, object]]] = {}
"""By the name of a metric: the hook that has recorded it last, and its step."""


class Hook:
    """Records what one library logs, as a worker that starts with the first metrics.

    Thread-safe. Nothing is raised into the library, except by ``start``.

    Args:
        framework: Name of the library, of its table of metric names, and of the source in the run.
        table: The table, or what returns it, if it is not the one in ``otel_rl/semconv/dialects``.
        quietly: True for a hook that the program has not asked for: a wrong setting is logged
            instead of raised, and nothing is recorded in a program that reports by itself.
    """

    def __init__(self, framework: str, table: Table = None, *, quietly: bool = False) -> None:
        self._framework = framework
        self._table = table
        self._quietly = quietly
        self._recorder = None if quietly else Recorder(framework, table, is_hook=True)
        self._has_failed = False
        self.has_config = False

    def start(
        self,
        known: WorkerNames,
        given: WorkerNames = _NO_NAMES,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Start the worker, unless the process already is one. Call it before each ``record``.

        Args:
            known: Names from the library; the environment takes precedence.
            given: Names from the user.
            config: Hyper-parameters of the run.

        Raises:
            ConfigError: See ``otel_rl.init``; a quiet hook logs it, once.
        """
        if self._has_failed:
            return
        self._has_failed = True  # until it has started
        if self._quietly:
            automatic(lambda: self._start(known, given, config))
        else:
            self._start(known, given, config)

    def _start(
        self, known: WorkerNames, given: WorkerNames, config: Mapping[str, object] | None
    ) -> None:
        start(known, given)
        if self._recorder is None:
            self._recorder = Recorder(self._framework, self._table, is_hook=True)
        if config is not None and not self.has_config:
            self.has_config = True
            self._recorder.config(config)
        self._has_failed = False

    def record(
        self, metrics: Mapping[str, Any], step: object = None, reduce: str | None = None
    ) -> None:
        """Record each number in ``metrics``, after ``start``. Other values are counted.

        Args:
            metrics: By the library's own names; those of nested mappings are joined by ``/``.
            step: The training step, or None for metrics that belong to their time.
            reduce: Reduction over the workers, for names without a rule in the table.
        """
        if self._recorder is not None:
            with guard:
                new = {n: v for n, v in _flat(metrics) if not self._is_of_another(n, step)}
                self._recorder.record(new, step, reduce)

    def _is_of_another(self, name: str, step: object) -> bool:
        """Return whether another hook has recorded a metric of this step: many log to several."""
        by, last = _last.get(name, ("", None))
        if self._quietly and step is not None and step == last and by != self._framework:
            return True
        _last[name] = self._framework, step
        return False

    def flush(self) -> None:
        """Deliver what was recorded, at the end of the library's logger. The process may go on."""
        if self._recorder is not None:
            deliver()

    def before(self, owner: Any, name: str, call: Callable[..., object]) -> None:
        """Call ``call`` before each call of ``owner.name``, with its arguments.

        Errors of ``call`` are counted, but for the ``ConfigError`` of a hook that is not quiet. A
        second call for the same function does nothing.

        Args:
            owner: Module or class.
            name: Its function or method.
            call: Has the parameters of the function.
        """
        original = getattr(owner, name)
        mark = f"__otel_rl_{self._framework}_{self._quietly}__"  # a program may ask for it later
        if hasattr(original, mark):
            return

        @wraps(original)
        def hooked(*arguments: Any, **named: Any) -> Any:  # any function's
            with self._errors():
                call(*arguments, **named)
            return original(*arguments, **named)

        setattr(hooked, mark, True)
        setattr(owner, name, hooked)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OtelRLError as error:
            if not self._quietly:
                raise
            guard.warn("adapter", f"An adapter is not switched on: {error}")
        except Exception as error:  # noqa: BLE001  # a library of another version
            guard.caught(error)


def _flat(metrics: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[Any]:
    for key, value in metrics.items():
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _flat(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value


def record_wandb(
    step_keys: Sequence[str] = (), role: str = "trainer", *, quietly: bool = False
) -> None:
    """Record everything that is logged to W&B in this process, too. Does nothing a second time.

    The names of the run are those of W&B's: its project is the experiment, its name the trial.

    Args:
        step_keys: Metrics that hold the step of what is logged with them, the first one counts;
            then those that the library has declared as an axis by ``define_metric``, if it is the
            axis of all or its name ends with "step". Without any it is the step at the call, that
            of the ``otel_rl.step`` block around it, or W&B's own.
        role: Default of the worker's role.
        quietly: See ``Hook``.
    """
    import wandb  # only W&B's users have it

    if wandb.__name__ != "wandb":  # the drop-in, which reports by itself
        return
    hook = Hook("wandb_log", _names_of_present, quietly=quietly)
    axes: list[str] = []

    def log(run: Any, data: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any) -> None:
        framework = present()
        names = WorkerNames(run.project, run.name, framework.role() or role)
        with logging_errors():
            hook.start(names, config=None if hook.has_config else dict(run.config))
        keys = (*step_keys, *framework.step_keys, *axes)
        values = {key: data[key] for key in data if key not in framework.step_keys}
        at = _step_of(data, step, keys)
        if at is None and not framework.step_keys:
            at = run.step
        hook.record(values, at if framework.has_step(data) else None)

    def define_metric(run: Any, name: str, step_metric: Any = None, *_: Any, **__: Any) -> None:
        del run
        axis = getattr(step_metric, "name", step_metric)
        if axis and axis not in axes and (name == "*" or axis.endswith("step")):
            axes.append(axis)

    hook.before(wandb.Run, "log", log)
    hook.before(wandb.Run, "define_metric", define_metric)
    hook.before(wandb.Run, "finish", lambda *_, **__: hook.flush())


def _names_of_present() -> Dialect:
    return present().dialect


def _step_of(data: Mapping[str, Any], step: int | None, axes: Sequence[str]) -> object:
    for key in axes:
        if key in data:
            return data[key]
    return current_step() if step is None else step


def record_tensorboard(
    names: WorkerNames = _NO_NAMES, role: str = "trainer", *, quietly: bool = False
) -> "Writers":
    """Record scalars of every ``SummaryWriter`` of this process, too, at their global step.

    Args:
        names: Experiment and trial; default those of the environment.
        role: Default of the worker's role.
        quietly: See ``Hook``.

    Returns:
        The writers, whose ``stop`` ends the recording.
    """
    hook = Hook("tensorboard", _names_of_present, quietly=quietly)

    def begin(config: Mapping[str, object] | None = None) -> None:
        with logging_errors():
            hook.start(WorkerNames(role=present().role() or role), names, config)

    def record(values: Mapping[str, object], step: object, _time_ns: int) -> None:
        begin()
        hook.record(values, step if present().has_step(values) else None)

    return Writers(record, hparams=lambda given, _: begin(given), close=hook.flush)


class _Record(Protocol):
    def __call__(self, values: Mapping[str, object], step: object, time_ns: int, /) -> None: ...


_WRITERS: Final = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

_SPLITS: Final = ("train", "eval", "test", "val", "valid", "validation")
"""Directory names of writers that name the split of their values."""


class Writers:
    """Follows the writers of PyTorch and tensorboardX, imports neither, until ``stop``.

    A program that trains and evaluates has a writer for each, with equal tags: those of a directory
    named after a split, or of another directory than the first, have its name before them.

    Args:
        record: Receives the values of one call with its step and time, after the writer has them.
        hparams: Receives the hyper-parameters and the metrics of ``add_hparams``.
        histogram: Makes a value for ``record`` of the numbers of ``add_histogram``.
        close: Is called after a writer is closed.
    """

    def __init__(
        self,
        record: _Record,
        hparams: Callable[[Mapping[str, object], Mapping[str, object]], None] | None = None,
        histogram: Callable[[object], object] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._record = record
        self._closed = close
        self._hparams = hparams
        self._histogram = histogram
        self._directories: list[PurePath] = []
        _following.append(self)
        for module in _WRITERS:
            when_imported(module, _hook_writer)

    def stop(self) -> None:
        """Follow no further call. Idempotent."""
        if self in _following:
            _following.remove(self)

    def _add_scalar(
        self,
        writer: Any,
        tag: str,
        scalar_value: object,
        global_step: object = None,
        walltime: float | None = None,
        *_: object,
        **__: object,
    ) -> None:
        self._record({self._name(writer, tag): scalar_value}, global_step, _ns(walltime))

    def _add_scalars(
        self,
        writer: Any,
        main_tag: str,
        tag_scalar_dict: Mapping[str, object],
        global_step: object = None,
        walltime: float | None = None,
    ) -> None:
        name = self._name(writer, main_tag)
        values = {f"{name}/{tag}": value for tag, value in tag_scalar_dict.items()}
        self._record(values, global_step, _ns(walltime))

    def _add_histogram(
        self,
        writer: Any,
        tag: str,
        values: object,
        global_step: object = None,
        bins: object = None,
        walltime: float | None = None,
        *_: object,
        **__: object,
    ) -> None:
        del bins
        if self._histogram is not None:
            made = self._histogram(values)
            self._record({self._name(writer, tag): made}, global_step, _ns(walltime))

    def _add_hparams(
        self,
        _writer: Any,
        hparam_dict: Mapping[str, object],
        metric_dict: Mapping[str, object],
        *_: object,
        **__: object,
    ) -> None:
        if self._hparams is not None:
            self._hparams(hparam_dict, metric_dict)

    def _close(self, *_: object, **__: object) -> None:
        if self._closed is not None:
            self._closed()

    def _name(self, writer: Any, tag: str) -> str:
        directory = PurePath(
            writer.get_logdir() if hasattr(writer, "get_logdir") else writer.logdir
        )
        if directory not in self._directories:
            self._directories.append(directory)
        is_first = directory == self._directories[0]
        return tag if is_first and directory.name not in _SPLITS else f"{directory.name}/{tag}"


_following: Final[list[Writers]] = []

_inside = threading.local()  # a writer that writes with another


def _hook_writer(module: ModuleType) -> None:
    for name in ("add_scalar", "add_scalars", "add_histogram", "add_hparams", "close"):
        original = getattr(module.SummaryWriter, name, None)
        if original is not None and not hasattr(original, _MARK):
            setattr(module.SummaryWriter, name, _followed(original, name))


_MARK: Final = "__otel_rl_tensorboard__"


def _followed(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(original)
    def write(writer: Any, *arguments: Any, **named: Any) -> Any:  # any writer's
        if not _following or getattr(_inside, "writer", None) is not None:
            return original(writer, *arguments, **named)
        _inside.writer = writer
        try:
            result = original(writer, *arguments, **named)
        finally:
            _inside.writer = None
        for following in tuple(_following):
            with guard:
                getattr(following, f"_{name}")(writer, *arguments, **named)
        return result

    setattr(write, _MARK, True)
    return write


def _ns(walltime: float | None) -> int:
    return time_ns() if walltime is None else int(walltime * 1e9)
