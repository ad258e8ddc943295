"""Records what a program logs by itself to W&B or to TensorBoard.

Before ``wandb.init`` or the first ``SummaryWriter``:

    otel_rl.integrations.hook.record_wandb(step_keys=["train/step", "rollout/step"])
    otel_rl.integrations.hook.record_tensorboard()

The program's own run or file stays as it was. A framework without an adapter whose metrics mean
more than their names has a row in the table here; the meaning of its metrics is in
``otel_rl/semconv/dialects``.
"""

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.adapter import (
    Dialect,
    Recorder,
    WorkerNames,
    before,
    current_step,
    deliver,
    flat,
    guard,
    logging_errors,
    start,
    when_imported,
    wrap,
)
from otel_rl.semconv.aliases import dialect

__all__ = ["TensorboardHook", "present", "record_tensorboard", "record_wandb"]

_NO_NAMES: Final = WorkerNames()


@dataclass(frozen=True)
class Framework:
    """A framework, recognised by the package that its processes have imported.

    Attributes:
        names: Name of the framework's table of metrics; empty if it has none.
        step_keys: Names of metrics that hold the step of what is logged with them; if there are
            such names, metrics logged without any of them have no step.
        by_time: Pattern of metrics that belong to their time: an evaluation takes longer than the
            row of its step waits, and samples of a GPU have no step.
        roles: Role of a process by a word in the name of its program; other processes are
            ``trainer``.
    """

    package: str = ""
    names: str = ""
    step_keys: tuple[str, ...] = ()
    by_time: str = "(?!)"
    roles: Mapping[str, str] = field(default_factory=dict)

    def has_step(self, metrics: Mapping[str, object]) -> bool:
        return not any(re.fullmatch(self.by_time, name) for name in metrics)

    def role(self) -> str | None:
        words = (word for word in sys.orig_argv[1:] if not word.startswith("-"))
        program = Path(next(words, "")).name  # sys.argv may be that of a launcher by now
        return next((role for word, role in self.roles.items() if word in program), None)


_FRAMEWORKS: Final = (
    Framework("nemo_rl", "nemo_rl", by_time="ray/.*"),
    Framework("openrlhf", "openrlhf", ("train/global_step", "eval/global_step"), by_time="eval/.*"),
    Framework(
        "prime_rl",
        "prime_rl",
        ("step",),
        by_time="inference/.*",
        roles={"evals": "evaluation", "orchestrator": "orchestrator"},
    ),
    Framework("roll", "roll"),
    Framework("skyrl", "skyrl"),
    Framework("slime", "slime", ("train/step", "rollout/step", "eval/step"), by_time="eval/.*"),
    Framework("tunix", "tunix", by_time="(.*/)?eval/.*"),
)

_OTHER: Final = Framework()


def present() -> Framework:
    """Return the framework that this process has imported, or the unknown framework."""
    return next((one for one in _FRAMEWORKS if one.package in sys.modules), _OTHER)


class Hook(Recorder):
    """Records what is logged to one place, as a worker that starts with the first metrics.

    Thread-safe. It never raises into the library: a wrong setting is logged.
    """

    _last: Final[dict[str, tuple[str, object]]] = {}
    """By the name of a metric: the hook that has recorded it last, and its step."""

    def __init__(self, framework: str) -> None:
        super().__init__(framework, _names_of_present, is_hook=True)
        self._is_off = False
        self.has_config = False

    def begin(
        self,
        known: WorkerNames,
        given: WorkerNames = _NO_NAMES,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Start the worker, unless the process is one. A silent or failed hook stays off."""
        self._is_off = self._is_off or self.is_silent
        if self._is_off:
            return
        has_started = False
        with logging_errors():
            start(known, given)
            has_started = True
            if config is not None and not self.has_config:
                self.has_config = True
                self.config(config)
        self._is_off = not has_started

    def log(self, metrics: Mapping[str, Any], step: object) -> None:
        """Record each number, after ``begin``; names of nested numbers are joined by ``/``.

        Many programs log to several places: among hooks that nobody asked for, the first one to
        record a metric of a step is the only one.
        """
        if not self._is_off:
            with guard:
                new = {n: v for n, v in flat(metrics) if self._is_first(n, step)}
                self.record(new, step)

    def _is_first(self, name: str, step: object) -> bool:
        by, last = self._last.get(name, ("", None))
        if self.is_automatic and step is not None and step == last and by != self.framework:
            return False
        self._last[name] = self.framework, step
        return True

    def deliver(self, *_: object, **__: object) -> None:
        """Deliver what was recorded when the library's logger ends. The process may go on."""
        if not self._is_off:
            deliver()


def _names_of_present() -> Dialect:
    names = present().names
    return dialect(names) if names else Dialect(())


class _OfWandb(Hook):
    """Follows runs of W&B: their project is the experiment, their name the trial."""

    def __init__(self, step_keys: Sequence[str], role: str) -> None:
        super().__init__("wandb_log")
        self._step_keys = tuple(step_keys)
        self._role = role
        self._axes: list[str] = []

    def follow(
        self, run: Any, data: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any
    ) -> None:
        framework = present()
        names = WorkerNames(run.project, run.name, framework.role() or self._role)
        self.begin(names, config=None if self.has_config else dict(run.config))
        keys = (*self._step_keys, *framework.step_keys, *self._axes)
        at = next((data[key] for key in keys if key in data), None)
        if at is None:
            at = current_step() if step is None else step
        if at is None and not framework.step_keys:
            at = run.step
        values = {key: data[key] for key in data if key not in framework.step_keys}
        self.log(values, at if framework.has_step(data) else None)

    def declare(self, _run: Any, name: str, step_metric: Any = None, *_: Any, **__: Any) -> None:
        """Use the axis that ``define_metric`` declares for steps, if it holds steps."""
        axis = getattr(step_metric, "name", step_metric)
        if axis and axis not in self._axes and (name == "*" or axis.endswith("step")):
            self._axes.append(axis)


# What follows the runs of this process. One that the program asks for replaces an automatic one.
_of_wandb: _OfWandb | None = None


def record_wandb(step_keys: Sequence[str] = (), role: str = "trainer") -> None:
    """Also record everything that this process logs to W&B. A second call does nothing.

    The run's names are W&B's: the project is the experiment, the name of W&B's run the trial.

    Args:
        step_keys: Metrics that hold the step of what is logged with them; the first one counts.
            After them come the metrics that the library has declared as an axis by
            ``define_metric``, if the axis is that of all metrics or its name ends with "step".
            Without any of them the step is the one at the call: of the ``otel_rl.step`` block
            around it, or W&B's own.
        role: Role of the worker, unless the environment names one.
    """
    import wandb  # only W&B's users have it

    global _of_wandb
    new = _OfWandb(step_keys, role)
    if _of_wandb is None or (_of_wandb.is_automatic and not new.is_automatic):
        _of_wandb = new
    for name, call in (("log", "follow"), ("define_metric", "declare"), ("finish", "deliver")):
        before(wandb.Run, name, partial(_tell, call))


def _tell(call: str, *arguments: Any, **named: Any) -> None:
    if _of_wandb is not None:
        getattr(_of_wandb, call)(*arguments, **named)


_WRITERS: Final = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""Modules with a class ``SummaryWriter``."""

_SPLITS: Final = ("train", "eval", "test", "val", "valid", "validation")
"""Directory names of writers that name the split of their values."""


class TensorboardHook(Hook):
    """Follows the writers of PyTorch and tensorboardX until ``stop``; it imports neither.

    A program that trains and evaluates has a writer for each, with equal tags: tags of a directory
    named after a split, or of another directory than the first, get its name in front.
    """

    def __init__(self, names: WorkerNames, role: str) -> None:
        super().__init__("tensorboard")
        self._names, self._role = names, role
        self._directories: list[PurePath] = []
        _following.append(self)
        for module in _WRITERS:
            when_imported(module, _hook_writer)

    def stop(self) -> None:
        if self in _following:
            _following.remove(self)

    def written(self, name: str, given: Mapping[str, Any]) -> None:
        """Record a call of a writer's method, with its arguments by name."""
        if name == "close":
            self.deliver()
            return
        framework = present()
        known = WorkerNames(role=framework.role() or self._role)
        self.begin(known, self._names, given.get("hparam_dict"))
        if name == "add_scalar":
            values = {self._tag(given["self"], given["tag"]): given["scalar_value"]}
        elif name == "add_scalars":
            values = {self._tag(given["self"], given["main_tag"]): given["tag_scalar_dict"]}
        else:
            return
        self.log(values, given.get("global_step") if framework.has_step(values) else None)

    def _tag(self, writer: Any, tag: str) -> str:
        directory = PurePath(
            writer.get_logdir() if hasattr(writer, "get_logdir") else writer.logdir
        )
        if directory not in self._directories:
            self._directories.append(directory)
        is_first = directory == self._directories[0]
        return tag if is_first and directory.name not in _SPLITS else f"{directory.name}/{tag}"


def record_tensorboard(names: WorkerNames = _NO_NAMES, role: str = "trainer") -> TensorboardHook:
    """Record scalars of each ``SummaryWriter`` at their global step until ``stop`` is called."""
    return TensorboardHook(names, role)


_following: Final[list[TensorboardHook]] = []

_inside = threading.local()  # a writer that writes with another


def _hook_writer(module: ModuleType) -> None:
    for name in ("add_scalar", "add_scalars", "add_hparams", "close"):
        if hasattr(module.SummaryWriter, name):
            wrap(module.SummaryWriter, name, partial(_followed, name))


def _followed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = tuple(signature(original).parameters)

    def write(*arguments: Any, **named: Any) -> Any:  # any writer's
        if not _following or getattr(_inside, "is_writing", False):
            return original(*arguments, **named)
        _inside.is_writing = True
        try:
            result = original(*arguments, **named)
        finally:
            _inside.is_writing = False
        given = {**dict(zip(parameters, arguments, strict=False)), **named}
        for following in tuple(_following):
            with guard:
                following.written(name, given)
        return result

    return write
