"""The kind MLflow: its checks before a run, and a writer's environment."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.kinds.checks import check_server, check_settings, check_writable
from otel_rl.bridge.delivery.mlflow.settings import MlflowSettings
from otel_rl.bridge.delivery.tracker_interface import CheckResult, RunInfo, Tracker, TrackerKind
from otel_rl.bridge.delivery.wandb.account import without_key
from otel_rl.errors import MissingExtra

__all__ = ["MLFLOW"]


def _validate(attributes: Mapping[str, str]) -> None:
    settings = MlflowSettings.parse(attributes)
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtra("tracker: mlflow", "the package mlflow", "mlflow")
    if not settings.is_server(os.environ) and importlib.util.find_spec("sqlalchemy") is None:
        raise MissingExtra("tracker: mlflow in a database", "sqlalchemy", "mlflow")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("mlflow settings", _validate, attributes)
    if wrong is not None:
        return [wrong]
    results = [check_writable("tracker directory", directory)]
    uri = MlflowSettings.parse(attributes).uri(os.environ)
    if urlsplit(uri).scheme in ("http", "https"):
        results.append(check_server("mlflow server", uri))
    return results


def _environment(environ: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a writer: no run of the user's own, no telemetry, no retries.

    The delivery loop retries. MLflow would also repeat the creation of a run, and hang for minutes.
    """
    own = {"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_CONTEXT"}
    return {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        **{name: value for name, value in without_key(environ).items() if name not in own},
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
    }


def _create(_: RunInfo) -> Tracker:
    from otel_rl.bridge.delivery.mlflow.tracker import MlflowTracker

    return MlflowTracker()


MLFLOW: Final = TrackerKind(
    "mlflow",
    _create,
    _validate,
    _check,
    _environment,
    home=lambda _: Path(),
    lacks="texts about steps, consoles, infinities (they are the largest numbers)",
)
"""The kind, for the table of trackers."""
