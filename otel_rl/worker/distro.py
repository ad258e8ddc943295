"""What ``opentelemetry-instrument`` asks for first. Needs the package that this command is from."""

import os

from opentelemetry.instrumentation.distro import (  # type: ignore[attr-defined]  # it has mypy ignore the whole module
    BaseDistro,
)

from otel_rl.worker.naming import names_an_experiment

__all__ = ["WorkerDistro", "distro"]


class WorkerDistro(BaseDistro):  # type: ignore[misc]  # for the same reason
    """Has the process configured by otel_rl rather than by whoever else is installed."""

    def _configure(self, **_options: object) -> None:
        os.environ.setdefault("OTEL_PYTHON_CONFIGURATOR", "otel_rl")


def distro() -> BaseDistro | None:
    """The distro, or None where no experiment is named: then the next one that is installed."""
    return WorkerDistro() if names_an_experiment(os.environ) else None
