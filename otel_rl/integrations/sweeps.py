"""Makes a run of each trial that a sweep's launcher starts below one ``otel-rl run``.

A process that starts no trial loads no worker.
"""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.import_hook import wrap

__all__ = ["PARAMETERS", "SWEEPS", "parameters"]

_OPEN: Final = "_otel_rl_end_of_trial"

_MAX_OVERRIDES: Final = 64
"""Characters of Hydra's overrides in a name, which has at most 128."""

PARAMETERS: Final = "WANDB_SWEEP_PARAM_PATH"
"""Variable with the path of the file in which an agent of W&B gives a run its hyper-parameters."""


def parameters(environ: Mapping[str, str]) -> Mapping[str, object]:
    """Return the hyper-parameters, by name, that an agent of W&B has given to a run.

    Never raises: a wrong file is counted.
    """
    path = environ.get(PARAMETERS)
    if not path:
        return {}
    try:
        import yaml  # with wandb, in a process of a sweep only

        loaded: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return {name: of["value"] for name, of in loaded.items() if name != "wandb_version"}
    except Exception as error:  # noqa: BLE001  # another version's file; the run goes on without
        from otel_rl.worker.drops import DropReason

        _adapter().guard.drop(
            DropReason.BAD_ATTRIBUTES,
            f"The run's config lacks the hyper-parameters in {path}: {error}",
        )
        return {}


def _tune(module: ModuleType) -> None:
    """Begin a trial where Ray Tune makes a trainable, or gives its actor another trial."""

    def end(trainable: Any, failure: Exception | None = None) -> None:
        if (end_trial := trainable.__dict__.pop(_OPEN, None)) is not None:
            end_trial(failure)

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(trainable: Any, *arguments: Any, **named: Any) -> Any:
            named_config = named.get("config", named.get("new_config"))
            given: Any = (arguments[0] if arguments else named_config) or {}
            info = given.get(module.TRIAL_INFO)
            if info is not None:
                end(trainable)
                chosen = {
                    key: value
                    for key, value in given.items()
                    if key != module.TRIAL_INFO and not str(key).startswith("__")
                }
                setattr(trainable, _OPEN, _adapter().begin_trial(info.trial_name, chosen))
            try:
                return original(trainable, *arguments, **named)
            except Exception as error:
                end(trainable, error)
                raise

        return init

    def stopping(original: Callable[..., Any]) -> Callable[..., Any]:
        def stop(trainable: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return original(trainable, *arguments, **named)
            finally:
                end(trainable)  # Ray kills the process before its exit handlers

        return stop

    wrap(module.Trainable, "__init__", making)
    wrap(module.Trainable, "reset", making)
    wrap(module.Trainable, "stop", stopping)


def _ray_train(module: ModuleType) -> None:
    """Give the workers of a Ray Train run within a trial of Tune the variables of the trial."""

    def fitting(original: Callable[..., Any]) -> Callable[..., Any]:
        def fit(trainer: Any, *arguments: Any, **named: Any) -> Any:
            if not os.environ.get("OTEL_RL_SWEEP"):
                return original(trainer, *arguments, **named)
            from otel_rl.worker.api.trials import VARIABLES  # here, because it loads the worker

            ours = {name: os.environ[name] for name in VARIABLES if name in os.environ}
            config = trainer.run_config
            given = getattr(config, "worker_runtime_env", None)
            if not isinstance(given, dict):
                return original(trainer, *arguments, **named)
            variables = {**ours, **(given.get("env_vars") or {})}
            config.worker_runtime_env = {**given, "env_vars": variables}
            try:
                return original(trainer, *arguments, **named)
            finally:
                config.worker_runtime_env = given  # it may be that of the next trial, too

        return fit

    wrap(module.DataParallelTrainer, "fit", fitting)


def _hydra(module: ModuleType) -> None:
    """Make each job of a multirun a trial; every launcher runs its jobs by this function."""

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_job(task_function: Any, config: Any, *arguments: Any, **named: Any) -> Any:
            mode = getattr(config.hydra, "mode", None)  # from Hydra 1.2 on
            task = task_function
            if getattr(mode, "name", "") == "MULTIRUN":
                name, overridden = _job(config.hydra.job), _overridden(config)

                @wraps(task_function)
                def task(*of_task: Any) -> Any:
                    with _adapter().trial(name, overridden):
                        return task_function(*of_task)

            return original(task, config, *arguments, **named)

        return run_job

    wrap(module, "run_job", running)


def _job(job: Any) -> str:
    """Return the name of a job: its number and its overrides, without secrets."""
    from otel_rl.worker.events.masking import is_secret

    given = str(job.override_dirname).split(",")
    shown = [one for one in given if not is_secret(one.partition("=")[0].lstrip("+"))]
    overrides = ",".join(shown)[:_MAX_OVERRIDES]
    return f"{job.num}-{overrides}" if overrides else str(job.num)


def _overridden(config: Any) -> dict[str, object]:
    """Return what the command line overrides; the value of a config group is its choice's name."""
    found: dict[str, object] = {}
    overrides = getattr(config.hydra, "overrides", None)
    for override in getattr(overrides, "task", ()):
        name, _, text = str(override).partition("=")
        if not name.startswith("~"):
            path = name.lstrip("+").partition("@")[0]
            found[path] = _at(config, path, text)
    return found


def _at(config: Any, path: str, text: str) -> object:
    try:
        value = config
        for key in path.split("."):
            value = value.get(key)
    except Exception:  # noqa: BLE001  # a value that the user's resolver refuses; the job will say so
        return text
    return value if isinstance(value, str | int | float | bool) else text


def _wandb(module: ModuleType) -> None:
    def trial_of(function: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(function)
        def called() -> Any:
            name = os.environ.get("WANDB_RUN_ID") or "run"
            with _adapter().trial(name, parameters(os.environ)):
                return function()

        return called

    def agent_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def agent(sweep_id: Any, function: Any = None, *arguments: Any, **named: Any) -> Any:
            made = None if function is None else trial_of(function)
            return original(sweep_id, made, *arguments, **named)

        return agent

    wrap(module, "agent", agent_of)


def _adapter() -> Any:
    from otel_rl.integrations import adapter  # here, because it loads the worker

    return adapter


SWEEPS: Final[dict[str, Callable[[ModuleType], None]]] = {
    "hydra.core.utils": _hydra,
    "ray.train.v2.api.data_parallel_trainer": _ray_train,
    "ray.tune.trainable.trainable": _tune,
    "wandb.wandb_agent": _wandb,
}
"""By the module of the launcher."""
