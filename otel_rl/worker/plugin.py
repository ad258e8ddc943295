"""Entry points by which the OpenTelemetry API finds us: no code in the program at all.

``OTEL_PYTHON_METER_PROVIDER=otel_rl`` and ``OTEL_PYTHON_TRACER_PROVIDER=otel_rl`` make the API call
these the first time a program asks for a meter or a tracer. An exception here would surface in the
middle of user code, so whatever goes wrong, the program gets providers that do nothing.
"""

import logging

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

__all__ = ["meter_provider", "tracer_provider"]

_log = logging.getLogger("otel_rl")
_told: list[str] = []


def meter_provider() -> MeterProvider:
    """The worker's MeterProvider, or one that does nothing. Never raises."""
    try:
        # Here, so that a broken installation is caught too.
        from otel_rl.worker.session import implicit_session

        session = implicit_session()
        if session is not None and session.settings.metrics.enabled:
            return session.providers.meter
    except Exception as error:  # noqa: BLE001  # the API would raise it in user code
        _tell(error)
    return NoOpMeterProvider()


def tracer_provider() -> TracerProvider:
    """The worker's TracerProvider, or one that does nothing. Never raises."""
    try:
        from otel_rl.worker.session import implicit_session

        session = implicit_session()
        if session is not None:
            return session.providers.tracer
    except Exception as error:  # noqa: BLE001  # the API would raise it in user code
        _tell(error)
    return NoOpTracerProvider()


def _tell(error: Exception) -> None:
    """Both entry points fail for one reason; say it once."""
    if not _told:
        _told.append(str(error))
        _log.warning("otel_rl cannot start and records nothing: %s", error)
