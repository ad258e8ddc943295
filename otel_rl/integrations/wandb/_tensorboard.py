"""``sync_tensorboard``: also logs values of a ``SummaryWriter``, at its global step.

The writers of PyTorch and tensorboardX are wrapped when a program imports them; nothing is imported
for it. Values are recorded as given; the writer works as before, and its exceptions pass.
"""

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import PurePath
from time import time_ns
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.wandb import _session
from otel_rl.integrations.wandb._logged.histogram import Histogram
from otel_rl.integrations.wandb._logged.values import flat_row
from otel_rl.integrations.wandb._session import guard
from otel_rl.integrations.wandb._skipped import report_skipped
from otel_rl.worker.plugins.import_hook import when_imported

__all__ = ["patch", "start", "stop", "unpatch"]

_WRITERS: Final = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

_SPLITS: Final = ("train", "eval", "test", "val", "valid", "validation")
"""Directory names of writers that name the split of their values."""

_is_on = False
_is_watched = False
_directories: list[PurePath] = []
_inside = threading.local()  # a writer that writes with another


def start() -> None:
    """Log values of writers from now on. Idempotent."""
    global _is_on, _is_watched  # one run per process
    _is_on = True
    if not _is_watched:
        _is_watched = True
        for name in _WRITERS:
            when_imported(name, _wrap)


def stop() -> None:
    """Stop logging values of writers; clears their directories."""
    global _is_on  # see start
    _is_on = False
    _directories.clear()


def patch(*_arguments: object, **_named: object) -> None:
    """Start, like ``wandb.tensorboard.patch``; its other arguments are not needed here."""
    start()


unpatch = stop


def _wrap(module: ModuleType) -> None:
    kind: type = module.SummaryWriter
    for name, record in (
        ("add_scalar", _scalar),
        ("add_scalars", _scalars),
        ("add_histogram", _histogram),
        ("add_hparams", _hparams),
    ):
        original = getattr(kind, name, None)
        if original is not None:
            setattr(kind, name, _recording(original, record))


def _recording(original: Callable[..., Any], record: Callable[..., None]) -> Callable[..., Any]:
    @wraps(original)
    def write(writer: Any, *arguments: Any, **named: Any) -> Any:  # any writer's
        if not _is_on or getattr(_inside, "writer", None) is not None:
            return original(writer, *arguments, **named)
        _inside.writer = writer
        try:
            result = original(writer, *arguments, **named)
        finally:
            _inside.writer = None
        with guard:
            record(writer, *arguments, **named)
        return result

    return write


def _scalar(
    writer: Any,
    tag: str,
    scalar_value: object,
    global_step: object = None,
    walltime: float | None = None,
    *_arguments: object,
    **_named: object,
) -> None:
    _record({f"{_namespace(writer)}{tag}": scalar_value}, global_step, walltime)


def _scalars(
    writer: Any,
    main_tag: str,
    tag_scalar_dict: Mapping[str, object],
    global_step: object = None,
    walltime: float | None = None,
) -> None:
    prefix = f"{_namespace(writer)}{main_tag}"
    named = {f"{prefix}/{tag}": value for tag, value in tag_scalar_dict.items()}
    _record(named, global_step, walltime)


def _histogram(
    writer: Any,
    tag: str,
    values: object,
    global_step: object = None,
    bins: object = None,
    walltime: float | None = None,
    *_arguments: object,
    **_named: object,
) -> None:
    del bins
    _record({f"{_namespace(writer)}{tag}": Histogram(values)}, global_step, walltime)


def _hparams(
    writer: Any,
    hparam_dict: Mapping[str, object],
    metric_dict: Mapping[str, object],
    *_arguments: object,
    **_named: object,
) -> None:
    """Log hyper-parameters as the run's config, and their metrics as its summary."""
    del writer
    _session.add_config(hparam_dict)
    row, _ = flat_row(metric_dict, time_ns())
    _session.record_summary(row)


def _record(values: Mapping[str, object], step: object, walltime: float | None) -> None:
    row, skipped = flat_row(values, time_ns() if walltime is None else int(walltime * 1e9))
    report_skipped(skipped)
    _session.record_at(row, step)


def _namespace(writer: Any) -> str:
    """Return the prefix that separates the values of one directory from those of another.

    A program that trains and evaluates has a writer for each, with equal tags. The first writer's
    tags have no prefix, unless its directory has the name of a split.
    """
    directory = PurePath(writer.get_logdir() if hasattr(writer, "get_logdir") else writer.logdir)
    if directory not in _directories:
        _directories.append(directory)
    if directory == _directories[0] and directory.name not in _SPLITS:
        return ""
    return f"{directory.name}/"
