"""Entry points by which OpenTelemetry finds us: no code in the program at all.

``OTEL_PYTHON_METER_PROVIDER=otel_rl`` and ``OTEL_PYTHON_TRACER_PROVIDER=otel_rl`` make the API call
the first two the first time a program asks for a meter or a tracer. ``opentelemetry-instrument``
makes a ``WorkerConfigurator`` before the program begins. An exception here would surface in the
middle of user code, so whatever goes wrong, the program gets providers that do nothing.
"""

import logging
import os
from importlib.metadata import entry_points

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

__all__ = ["WorkerConfigurator", "meter_provider", "tracer_provider"]

_log = logging.getLogger("otel_rl")
_told: list[str] = []

# Of declarative configuration, under its name and its earlier one.
_CONFIG_FILES = ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE")


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
    return _SilentMeterProvider()


def tracer_provider() -> TracerProvider:
    """The worker's TracerProvider, or one that does nothing. Never raises."""
    try:
        from otel_rl.worker.session import implicit_session

        session = implicit_session()
        if session is not None:
            return session.providers.tracer
    except Exception as error:  # noqa: BLE001  # the API would raise it in user code
        _tell(error)
    return _SilentTracerProvider()


class _SilentMeterProvider(NoOpMeterProvider):
    """Does nothing, also what a program may ask of the SDK's."""

    def add_metric_reader(self, metric_reader: object) -> None:
        """Nothing: there is nothing to read."""

    def remove_metric_reader(self, metric_reader: object) -> None:
        """Nothing."""

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing, in time."""
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Nothing."""


class _SilentTracerProvider(NoOpTracerProvider):
    """Does nothing, also what a program may ask of the SDK's."""

    @property
    def resource(self) -> Resource:
        """Nobody's."""
        return Resource.get_empty()

    def add_span_processor(self, span_processor: object) -> None:
        """Nothing: there are no spans."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing, in time."""
        del timeout_millis
        return True

    def shutdown(self) -> None:
        """Nothing."""


class WorkerConfigurator:
    """Starts the worker that the environment describes, before a program's first line."""

    def configure(self, **options: object) -> None:
        """Make otel_rl's providers the program's. Never raises.

        Where no experiment is named and another configurator is installed, that one does its work:
        an installed otel_rl changes nothing for programs that are no workers.
        """
        try:
            from otel_rl.worker.naming import names_an_experiment

            if not names_an_experiment(os.environ):
                for entry_point in entry_points(group="opentelemetry_configurator"):
                    if entry_point.name != "otel_rl":
                        entry_point.load()().configure(**options)
                        return
            for variable in _CONFIG_FILES:
                if path := os.environ.get(variable, "").strip():
                    _log.warning(
                        "otel_rl configures this process by its environment and does not read "
                        "%s (%s). OTEL_PYTHON_CONFIGURATOR names another configurator.",
                        variable,
                        path,
                    )
            from otel_rl.worker.session import install_from_environment

            install_from_environment()
        except Exception as error:  # noqa: BLE001  # the program must begin all the same
            _tell(error)


def _tell(error: Exception) -> None:
    """All entry points fail for one reason; say it once."""
    if not _told:
        _told.append(str(error))
        _log.warning("otel_rl cannot start and records nothing: %s", error)
