"""Lets the bridge write to the W&B run that the program makes itself. ``otel-rl run --attach``.

    otel_rl.integrations.own_run.share()

The real ``wandb.init`` then begins every online run in W&B's shared mode, where several processes
write to one run, and reports the run's path, by which a bridge with ``--attach`` joins the run.
Runs that are offline, disabled or resumed stay as they are.

The first run of a process belongs to the process's trial. Each later run is a trial of its own,
because its rows belong into another run.
"""

import logging
import os
from collections.abc import Callable, Mapping
from inspect import signature
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.adapter import guard, logging_errors, wrap
from otel_rl.worker import session
from otel_rl.worker.launch import sweep_environment
from otel_rl.worker.settings import SWEEP

__all__ = ["hint", "share"]

_log = logging.getLogger("otel_rl")

_PURPOSE: Final = "own_run"  # the hook of W&B may wrap the same functions
_SHARED: Final = "shared"
_ONLINE: Final = ("online", "run", _SHARED)  # "run" is W&B's former name
_VARIABLES: Final = (SWEEP, "OTEL_RESOURCE_ATTRIBUTES", "OTEL_RL_TRIAL")

_BESIDE: Final = "otel_rl writes a run of its own beside it."

STEP: Final = "otel_rl/step"
"""Axis of what is logged with ``step=``, which shared mode ignores; the bridge's rows have it."""


def share() -> None:
    """Share the runs of ``wandb.init`` from now on. A second call does nothing."""
    import wandb  # only W&B's users have it

    def sharing(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*arguments: Any, **named: Any) -> Any:
            changed: dict[str, str] = {}
            with guard, logging_errors():
                if _may_share(wandb, original, arguments, named):
                    changed["mode"] = _SHARED
            run = original(*arguments, **{**named, **changed})
            with guard:
                if run.settings.mode == _SHARED:
                    _report(run)
            return run

        return init

    wrap(wandb, "init", sharing, _PURPOSE)
    wrap(wandb.Run, "log", _with_step, _PURPOSE)
    wrap(wandb.Run, "define_metric", _noting_axis, _PURPOSE)


def hint() -> None:
    """Log, for the first online run of ``wandb.init``, that the bridge can join it."""
    import wandb  # see share

    def hinting(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*arguments: Any, **named: Any) -> Any:
            run = original(*arguments, **named)
            with guard:
                if not (run.disabled or run.offline):
                    guard.warn(
                        "own_run",
                        "This program makes a W&B run of its own, beside the one of otel_rl. "
                        "`otel-rl run --attach` writes both into the program's.",
                    )
            return run

        return init

    wrap(wandb, "init", hinting, _PURPOSE)


def _may_share(
    wandb: ModuleType, original: Callable[..., Any], arguments: Any, named: Mapping[str, Any]
) -> bool:
    given = signature(original).bind_partial(*arguments, **named).arguments
    mode = _setting(wandb, given, "mode")
    if mode == "disabled":
        return False
    worker = session.start_from_environment()
    if worker is None:
        return False
    if mode not in _ONLINE:
        _log.warning("This W&B run is %s and cannot be joined: %s", mode, _BESIDE)
        return False
    resumes = _setting(wandb, given, "resume") not in (None, False, "never")
    if mode != _SHARED and (resumes or given.get("resume_from") or given.get("fork_from")):
        _log.warning("A resumed W&B run cannot be joined: %s", _BESIDE)
        worker.report_own_run("")
        return False
    return True


def _setting(wandb: ModuleType, given: Mapping[str, Any], name: str) -> Any:
    settings = given.get("settings")
    if given.get(name) is not None:
        return given[name]
    if isinstance(settings, Mapping) and settings.get(name) is not None:
        return settings[name]
    if settings is not None and name in getattr(settings, "model_fields_set", ()):
        return getattr(settings, name)
    return getattr(wandb.setup().settings, name)


# By trial: the path of its run, and the variables of the trial to which others are added.
_joined: Final[dict[str, tuple[str, dict[str, str | None]]]] = {}

# Shared runs, by id: whether all their metrics have an axis.
_has_axis: Final[dict[str, bool]] = {}

os.register_at_fork(after_in_child=_joined.clear)


def _report(run: Any) -> None:
    """Report the path of a run. Each later run of this process becomes a trial of its own."""
    worker = session.start_from_environment()
    if worker is None:
        return
    _has_axis.setdefault(run.id, False)
    path = f"{run.entity}/{run.project}/{run.id}"
    known, before = _joined.get(worker.identity.trial, (path, {}))
    if not before:
        before = {name: os.environ.get(name) for name in _VARIABLES}
        before["OTEL_RL_TRIAL"] = worker.identity.trial
    if known != path:
        given = {name: value for name, value in before.items() if value is not None}
        variables = sweep_environment(given, run.id)
        session.change_trial(variables["OTEL_RL_TRIAL"], worker.settings.config)
        os.environ.update(variables)
        worker = session.running() or worker
    _joined[worker.identity.trial] = path, before
    worker.report_own_run(path)


def _with_step(log: Callable[..., None]) -> Callable[..., None]:
    """Return a ``log`` that puts its argument ``step`` into the row of a shared run."""

    def logged(
        run: Any, data: dict[str, Any], step: int | None = None, *arguments: Any, **named: Any
    ) -> None:
        with guard:
            if step is not None and run.id in _has_axis:
                if not _has_axis[run.id]:
                    run.define_metric("*", step_metric=STEP)
                data, step = {**data, STEP: step}, None
        log(run, data, step, *arguments, **named)

    return logged


def _noting_axis(define_metric: Callable[..., Any]) -> Callable[..., Any]:
    def noted(run: Any, name: str, *arguments: Any, **named: Any) -> Any:
        if name == "*":
            _has_axis[run.id] = True
        return define_metric(run, name, *arguments, **named)

    return noted
