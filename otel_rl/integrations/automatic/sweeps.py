"""Makes a run of each trial that a sweep's launcher starts below one ``otel-rl run``.

A process that starts no trial loads no worker.
"""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.automatic.wandb_sweep import parameters

__all__ = ["SWEEPS"]

_MARK: Final = "_begins_otel_rl_trials"

_OPEN: Final = "_otel_rl_trial_is_open"

_MAX_OVERRIDES: Final = 64
"""Characters of Hydra's overrides in a name, which has at most 128."""

_UUID: Final = len("no-name-") + 8
"""Characters of a study without a name that tell it from others."""


def _tune(module: ModuleType) -> None:
    """Begin a trial where Ray Tune makes a trainable, or gives another trial to its actor."""
    kind: Any = module.Trainable

    def begin(trainable: Any, config: Any) -> None:
        info = config.get(module.TRIAL_INFO) if config else None
        if info is not None:
            end(trainable)
            chosen = {
                key: value
                for key, value in config.items()
                if key != module.TRIAL_INFO and not str(key).startswith("__")
            }
            _begin(info.trial_name, chosen)
            setattr(trainable, _OPEN, True)

    def end(trainable: Any, failure: Exception | None = None) -> None:
        if trainable.__dict__.pop(_OPEN, False):
            _end(failure)

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def init(trainable: Any, *arguments: Any, **named: Any) -> Any:
            given = arguments[0] if arguments else named.get("config", named.get("new_config"))
            begin(trainable, given)
            try:
                return original(trainable, *arguments, **named)
            except Exception as error:
                end(trainable, error)
                raise

        return init

    def stopping(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def stop(trainable: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return original(trainable, *arguments, **named)
            finally:
                end(trainable)  # Ray kills the process before its exit handlers

        return stop

    _replace(kind, "__init__", making)
    _replace(kind, "reset", making)
    _replace(kind, "stop", stopping)


def _ray_train(module: ModuleType) -> None:
    """Let the workers of a Ray Train within a trial of Tune have its environment."""
    module.ENV_VARS_TO_PROPAGATE.update(
        (
            *("OTEL_RESOURCE_ATTRIBUTES", "OTEL_RL_CONFIG", "OTEL_RL_SWEEP"),
            *("OTEL_RL_TRIAL", "OTEL_RL_TYPED"),
        )
    )


def _hydra(module: ModuleType) -> None:
    """Make a trial of each job of a multirun; every launcher runs it by this function."""

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run_job(*arguments: Any, **named: Any) -> Any:
            config = named["config"] if "config" in named else arguments[1]
            mode = getattr(config.hydra, "mode", None)  # from Hydra 1.2 on
            if getattr(mode, "name", "") != "MULTIRUN":
                return original(*arguments, **named)
            _begin(_job(config.hydra.job), _overridden(config))
            result = None
            try:
                done = original(*arguments, **named)
                result = getattr(done, "_return_value", None)  # the public one raises a failure
                return done
            finally:
                _end(result if isinstance(result, Exception) else None)

        return run_job

    _replace(module, "run_job", running)


def _job(job: Any) -> str:
    """Return the name of a job: its number, and what it overrides but secrets."""
    from otel_rl.worker.events.masking import is_secret

    given = str(job.override_dirname).split(",")
    shown = [one for one in given if not is_secret(one.partition("=")[0].lstrip("+"))]
    overrides = ",".join(shown)[:_MAX_OVERRIDES]
    return f"{job.num}-{overrides}" if overrides else str(job.num)


def _overridden(config: Any) -> dict[str, object]:
    """Return what the command line overrides; a value of a group is the name of its choice."""
    found: dict[str, object] = {}
    overrides = getattr(config.hydra, "overrides", None)
    for override in getattr(overrides, "task", ()):
        name, _, text = str(override).partition("=")
        if not name.startswith("~"):
            path = name.lstrip("+").partition("@")[0]
            found[path] = _at(config, path, text)
    return found


def _at(config: Any, path: str, text: str) -> object:
    """Return the value of a config at a path of keys; ``text`` if it has no plain one there."""
    try:
        value = config
        for key in path.split("."):
            value = value.get(key)
    except Exception:  # noqa: BLE001  # a value that the user's resolver refuses; the job will say so
        return text
    return value if isinstance(value, str | int | float | bool) else text


def _optuna(module: ModuleType) -> None:
    """Make a trial of each call of an objective."""

    def optimizing(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def optimize(
            study: Any, func: Any, n_trials: Any = None, timeout: Any = None, n_jobs: int = 1,
            *arguments: Any, **named: Any,
        ) -> Any:  # fmt: skip
            if n_jobs == 1:
                func = _objective(study.study_name, func, module.exceptions.TrialPruned)
            else:
                _guard().warn(
                    "optuna_threads",
                    "Optuna runs several trials in threads of this process, which share a run. "
                    "For a run of each, start processes with one storage instead of n_jobs.",
                )
            return original(study, func, n_trials, timeout, n_jobs, *arguments, **named)

        return optimize

    _replace(module.Study, "optimize", optimizing)


def _optuna_trial(module: ModuleType) -> None:
    """Put what Optuna chooses within an objective into the config of the trial's run."""
    for method in ("suggest_categorical", "suggest_float", "suggest_int"):
        _replace(module.Trial, method, _logging)


def _objective(study: str, func: Any, pruned: type[Exception]) -> Callable[[Any], Any]:
    @wraps(func)
    def objective(of: Any) -> Any:
        _begin(f"{study[:_UUID] if study.startswith('no-name-') else study}-{of.number}")
        of.__dict__[_OPEN] = True
        failure: Exception | None = None
        try:
            return func(of)
        except pruned:
            raise
        except Exception as error:
            failure = error
            raise
        finally:
            _end(failure)

    return objective


def _logging(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give the trial's run a hyper-parameter as soon as Optuna has chosen it."""

    @wraps(original)
    def suggest(of: Any, name: str, *arguments: Any, **named: Any) -> Any:
        value = original(of, name, *arguments, **named)
        if of.__dict__.get(_OPEN):
            _log_config({name: value})
        return value

    return suggest


def _wandb(module: ModuleType) -> None:
    """Make a trial of each call of an agent's function."""

    def agent_of(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def agent(sweep_id: Any, function: Any = None, *arguments: Any, **named: Any) -> Any:
            if function is not None:
                function = _run_of_sweep(function)
            return original(sweep_id, function, *arguments, **named)

        return agent

    _replace(module, "agent", agent_of)


def _run_of_sweep(function: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(function)
    def called() -> Any:
        _begin(os.environ.get("WANDB_RUN_ID") or "run", parameters(os.environ))
        failure: Exception | None = None
        try:
            return function()
        except Exception as error:
            failure = error
            raise
        finally:
            _end(failure)

    return called


def _begin(name: str, config: Mapping[str, object] | None = None) -> None:
    from otel_rl.integrations.adapter import begin_trial  # here, because it loads the worker

    begin_trial(name, config)


def _log_config(config: Mapping[str, object]) -> None:
    from otel_rl.integrations.adapter import log_trial_config

    log_trial_config(config)


def _end(failure: Exception | None = None) -> None:
    from otel_rl.integrations.adapter import end_trial

    end_trial(failure)


def _guard() -> Any:
    from otel_rl.integrations.adapter import guard

    return guard


def _replace(owner: Any, name: str, by: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, _MARK):
        replaced = by(original)
        setattr(replaced, _MARK, True)
        setattr(owner, name, replaced)


SWEEPS: Final[dict[str, Callable[[ModuleType], None]]] = {
    "hydra.core.utils": _hydra,
    "optuna.study.study": _optuna,
    "optuna.trial": _optuna_trial,
    "ray.train.v2._internal.constants": _ray_train,
    "ray.tune.trainable.trainable": _tune,
    "wandb.wandb_agent": _wandb,
}
"""By the module of the launcher."""
