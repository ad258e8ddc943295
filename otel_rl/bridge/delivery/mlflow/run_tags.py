"""Run metadata as MLflow's tags and parameters."""

from collections.abc import Mapping
from typing import Final

from otel_rl.bridge.delivery.mlflow.names import flat, mlflow_name, mlflow_text
from otel_rl.records import Description

__all__ = ["COMMIT", "NOTES", "SOURCE", "params_of", "tags_of"]

NOTES: Final = "mlflow.note.content"
"""Tag that MLflow shows as the run's description."""

COMMIT: Final = "mlflow.source.git.commit"
"""Tag that MLflow shows as the run's version."""

SOURCE: Final = "mlflow.source.name"
"""Tag that MLflow shows as the run's source."""

_MAX_TAG: Final = 5_000  # the limit of servers before MLflow 3


def params_of(description: Description) -> Mapping[str, str]:
    """Return the config as parameters: leaves, by their paths."""
    return dict(flat(description.config))


def tags_of(description: Description) -> Mapping[str, str]:
    """Return the rest of the metadata as tags. Those without a value are left out."""
    crash = description.crash
    tags = {mlflow_name(tag): "true" for tag in description.tags if tag}
    tags |= {
        NOTES: description.notes,
        "group": description.group,
        "job_type": description.job_type,
        "status": str(description.status),
        "crash": "" if crash is None else f"{crash.as_crash}: {crash.message}".rstrip(": "),
        "hosts": mlflow_text(dict(description.hosts)) if description.hosts else "",
    }
    if description.provenance is not None:
        tags[COMMIT] = description.provenance.commit
        tags[SOURCE] = " ".join(description.provenance.command)
    return {name: mlflow_text(text, _MAX_TAG) for name, text in tags.items() if text}
