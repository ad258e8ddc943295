"""``wandb.init`` and functions that use the run in progress."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, SupportsIndex

from otel_rl.errors import ConfigError
from otel_rl.integrations.wandb import _session, _tensorboard
from otel_rl.integrations.wandb._config import config_of
from otel_rl.integrations.wandb._identity import DEFAULT_PROJECT, Names, worker_of
from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._run import Metric, Run
from otel_rl.integrations.wandb._run_metadata import About, generate_id
from otel_rl.integrations.wandb._session import DropReason, guard
from otel_rl.semconv.names import RlExperimentModeValues
from otel_rl.worker.identity.names import run_word

__all__ = ["current", "define_metric", "finish", "init", "log", "login"]

_current: Run | None = None


def current() -> Run | None:
    """Return the run in progress."""
    return None if _current is None or _current.is_finished else _current


# Arguments of init() without a meaning for a worker, each with its replacement.
_IGNORED: Final[Mapping[str, str]] = {
    "mode": "choose online, offline, shared or disabled",
    "resume": "the same project and id or name is the same run",
    "resume_from": "start another trial",
    "fork_from": "start another trial",
    "settings": "they belong to a W&B client",
    "save_code": "a worker uploads no files",
    "monitor_gym": "a worker uploads no files",
}

_MEANT_ANYWAY: Final = (("resume", "allow"), ("resume", "auto"), ("resume", True))
"""Arguments that ask for what the bridge does: the same experiment and trial is the same run."""

_MODES: Final = {"dryrun": "offline", "run": "online"}
"""W&B's former words."""


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
    sync_tensorboard: bool | None = None,
    **others: object,
) -> Run:
    """Start reporting, as the worker that ``otel-rl help wandb`` derives from the arguments.

    Args:
        entity: W&B's entity of the run.
        project: The experiment, and W&B's project of the run.
        dir: Returned by ``run.dir``.
        id: The trial; processes with the same project and id share a run.
        name: W&B's name of the run, and the trial if there is no ``id``. Without both, the run is
            the first of the launch, then the second, and so on.
        notes: Notes of the run.
        tags: Tags of the run, merged with those of the other processes.
        config: A dict, ``argparse.Namespace``, dataclass, or a JSON or YAML file.
        config_exclude_keys: Keys to omit from the config.
        config_include_keys: The only keys to keep of the config.
        allow_val_change: Ignored: values may always change.
        group: Group of the run.
        job_type: The worker's role, and the run's job type.
        mode: ``online``, ``offline`` or ``shared``; ``disabled`` records nothing.
        force: Ignored.
        reinit: With a run in progress: True or ``finish_previous`` ends it first; by default it is
            returned unchanged.
        sync_tensorboard: True also logs values of a ``SummaryWriter``, at its global step.
        others: Ignored, with a warning.

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
    names = Names(project, name, id, job_type)
    environ = os.environ
    is_known_mode = _MODES.get(mode or "", mode) in tuple(RlExperimentModeValues)
    about = About(
        project=run_word(environ, "project", project, environ.get("WANDB_PROJECT"))
        or DEFAULT_PROJECT,
        name=run_word(environ, "name", name, environ.get("WANDB_NAME")) or "",
        id=id or os.environ.get("WANDB_RUN_ID") or generate_id(),
        entity=entity or "",
        group=group or os.environ.get("WANDB_RUN_GROUP") or "",
        job_type=job_type or os.environ.get("WANDB_JOB_TYPE") or "",
        notes=notes or os.environ.get("WANDB_NOTES"),
        tags=_tags(tags or os.environ.get("WANDB_TAGS", "").split(",")),
        mode=_MODES.get(mode, mode) if mode and is_known_mode else "",
        dir=os.fspath(dir) if dir is not None else ".",
        disabled=(mode or os.environ.get("WANDB_MODE")) == "disabled",
    )
    if not about.disabled:
        worker = worker_of(names, environ, _session.process_name(), _session.finished)
        _session.join(worker, about)
        if not (id or os.environ.get("WANDB_RUN_ID")):
            about = replace(about, id=_session.trial() or about.id)  # a later init(id=) resumes it
        _warn_ignored({**others, "mode": None if is_known_mode else mode})
        if sync_tensorboard or getattr(others.get("settings"), "sync_tensorboard", False):
            _tensorboard.start()
    _current = Run(about)
    _current.config.update(_selected(config, config_exclude_keys, config_include_keys))
    return _current


def _selected(
    config: object, excluded: Sequence[str] | None, included: Sequence[str] | None
) -> dict[str, object]:
    """Return the hyperparameters that are to be kept; all where nothing is included by name."""
    return {
        key: value
        for key, value in config_of(config).items()
        if key not in (excluded or ()) and (included is None or key in included)
    }


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
        guard.drop(
            DropReason.NOT_STARTED,
            "wandb.log was called before wandb.init() or after wandb.finish(); it is dropped.",
            _size(data),
        )


def define_metric(name: str, step_metric: str | Metric | None = None, **others: object) -> Metric:
    """Define a metric of the run in progress; without a run do nothing."""
    if (run := current()) is None:
        warn_once("define_metric before init() does nothing.")
        return Metric(name)
    return run.define_metric(name, step_metric, **others)  # type: ignore[arg-type]  # W&B's


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish the run for this process: wait up to five seconds for delivery. Never raises."""
    global _current  # W&B's API is one run per process
    finished, _current = _current, None
    if finished is not None:
        finished.finish(exit_code, quiet)


def login(*_arguments: object, **_named: object) -> bool:
    """Return True: a worker needs no key, the bridge has it."""
    return True


def _tags(given: Sequence[str]) -> tuple[str, ...]:
    words = [given] if isinstance(given, str) else given
    return tuple(word for word in words if word)


def _size(data: object) -> int:
    return len(data) if isinstance(data, Mapping) else 1


def _warn_ignored(given: Mapping[str, object]) -> None:
    for argument, value in given.items():
        if value and (argument, value) not in _MEANT_ANYWAY:
            why = _IGNORED.get(argument, "a worker has no use for it")
            warn_once(f"init({argument}=...) is not written to the run: {why}.")
