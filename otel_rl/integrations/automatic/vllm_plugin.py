"""Installs the vLLM adapter: vLLM calls ``register`` in each of its processes, by an entry point.

A stat logger plugin of vLLM would enable statistics wherever otel_rl is installed, without an
option to decline. A general plugin is only called. So this one adds the stat logger in processes
that work for an experiment, and in all others does and imports nothing.
"""

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Final

from otel_rl.worker.identity.names import names_an_experiment

__all__ = ["register"]

_log = logging.getLogger("otel_rl")

_LOADER: Final = "load_stat_logger_plugin_factories"
"""Function through which an asynchronous engine finds the stat loggers of plugins."""

_HOME: Final = "vllm.v1.metrics.loggers"

_MODULES: Final = (_HOME, "vllm.v1.engine.async_llm")
"""Module that defines it, and the one that imports the function, if loaded already."""

_MARK: Final = "_knows_otel_rl"


def register() -> None:
    """Make engines find ``OtelStatLogger``, if the process works for an experiment.

    Idempotent. Never raises, because vLLM would not start.
    """
    if not (_is_worker() or names_an_experiment(os.environ)):
        return
    try:
        import_module(_HOME)
    except ImportError as error:
        _log.warning("vLLM's statistics are not recorded: %s.", error)
        return
    for module in filter(None, map(sys.modules.get, _MODULES)):
        _add_to(module)


def _is_worker() -> bool:
    """Report whether ``otel_rl.init`` was called, without loading its module."""
    session = sys.modules.get("otel_rl.worker.session")
    return session is not None and session.running() is not None


def _add_to(module: ModuleType) -> None:
    original: Callable[[], list[object]] | None = getattr(module, _LOADER, None)
    if original is None:
        _log.warning(
            "vLLM's statistics are not recorded: this version of vLLM has no %s in %s.",
            _LOADER,
            module.__name__,
        )
    elif not hasattr(original, _MARK):
        setattr(module, _LOADER, _knowing(original))


def _knowing(original: Callable[[], list[object]]) -> Callable[[], list[object]]:
    @wraps(original)
    def load_stat_logger_plugin_factories() -> list[object]:
        found = original()
        try:
            # Imported here, because only one of vLLM's processes has engines.
            from otel_rl.integrations.vllm import OtelStatLogger
        except ImportError as error:  # a vLLM version with other names
            _log.warning("vLLM's statistics are not recorded: %s.", error)
            return found
        return [*found, OtelStatLogger]

    setattr(load_stat_logger_plugin_factories, _MARK, True)
    return load_stat_logger_plugin_factories
