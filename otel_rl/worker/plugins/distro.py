"""Distro for ``opentelemetry-instrument``. Needs the package that provides this command."""

import os

from opentelemetry.instrumentation.distro import (  # type: ignore[attr-defined]  # it has mypy ignore the whole module
    BaseDistro,
)

from otel_rl.worker.identity import names_an_experiment

__all__ = ["WorkerDistro", "distro"]


class WorkerDistro(BaseDistro):  # type: ignore[misc]  # for the same reason
    """Selects otel_rl as the configurator of the process, ahead of other installed ones."""

    def _configure(self, **_options: object) -> None:
        os.environ.setdefault("OTEL_PYTHON_CONFIGURATOR", "otel_rl")


def distro() -> BaseDistro | None:
    """Return the distro; None without a named experiment, so that other distros are used."""
    return WorkerDistro() if names_an_experiment(os.environ) else None
