"""Settings of the MLflow tracker."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.kinds.options import parse_options
from otel_rl.errors import ConfigError
from otel_rl.redaction import redacted

__all__ = ["MlflowSettings"]

_SECRET_HINT: Final = "Set MLFLOW_TRACKING_USERNAME and _PASSWORD, or MLFLOW_TRACKING_TOKEN."  # noqa: S105  # no secret

_SERVERS: Final = frozenset({"http", "https", "databricks"})
_DATABASES: Final = frozenset({"sqlite", "postgresql", "mysql", "mssql"})


@dataclass(frozen=True, slots=True)
class MlflowSettings:
    """Options of the MLflow tracker.

    Attributes:
        tracking_uri: Server (``http://mlflow:5000``) or database (``sqlite:///mlflow.db``). Empty
            for ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the tracker's directory.
        experiment: MLflow's experiment. Empty for ``MLFLOW_EXPERIMENT_NAME``, else that of the run.
    """

    tracking_uri: str = ""
    experiment: str = ""

    @classmethod
    def parse(cls, attributes: Mapping[str, str]) -> "MlflowSettings":
        """Read the attributes of a run.

        Raises:
            ConfigError: An unknown name, or a store that cannot recognise repeated values.
        """
        settings = parse_options("mlflow", cls, attributes, secret_hint=_SECRET_HINT)
        uri = settings.uri(os.environ)
        scheme = urlsplit(uri).scheme.partition("+")[0]
        if uri and scheme not in _SERVERS | _DATABASES and uri != "databricks":
            raise ConfigError(
                f'mlflow.tracking_uri: must be a server or a database (got "{redacted(uri)}").',
                hint="MLflow's file store cannot recognise repeated values and is deprecated: "
                "`mlflow migrate-filestore` moves its runs to a database. Use "
                "sqlite:///mlflow.db, or http://HOST:5000.",
            )
        return settings

    def is_server(self, environ: Mapping[str, str]) -> bool:
        """Return whether a server has the database."""
        uri = self.uri(environ)
        return urlsplit(uri).scheme in _SERVERS or uri == "databricks"

    def uri(self, environ: Mapping[str, str]) -> str:
        """Return the store; empty for the file in the tracker's directory."""
        return self.tracking_uri or environ.get("MLFLOW_TRACKING_URI", "")
