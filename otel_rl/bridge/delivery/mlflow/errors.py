"""MLflow's exceptions as the two errors of the delivery loop."""

from collections.abc import Iterator
from contextlib import contextmanager

from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.redaction import redacted

__all__ = ["translated"]

_REFUSED = frozenset({400, 401, 403, 404, 405, 409, 410, 422, 501})

_HINTS = {
    401: "Check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
    403: "Check the rights of the user of MLFLOW_TRACKING_USERNAME or MLFLOW_TRACKING_TOKEN.",
}
_OTHER_HINT = "Check MLFLOW_TRACKING_URI and the experiment's name; the rows are kept."


@contextmanager
def translated() -> Iterator[None]:
    """Translate MLflow's exceptions.

    Raises:
        TrackerRejected: The server refuses credentials, names or the run.
        TrackerUnavailable: Anything else.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as exc:
        words = redacted(str(exc.message).strip().partition("\n")[0])
        status = exc.get_http_status_code()  # type: ignore[no-untyped-call]  # no hints
        if status in _REFUSED:
            hint = _HINTS.get(status, _OTHER_HINT)
            raise TrackerRejected(f"MLflow refuses the run: {words}", hint=hint) from exc
        raise TrackerUnavailable(f"MLflow cannot be reached: {words}") from exc
