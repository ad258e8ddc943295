"""Entry points through which OpenTelemetry loads otel_rl without any code in the program.

With ``OTEL_PYTHON_METER_PROVIDER=otel_rl`` and ``OTEL_PYTHON_TRACER_PROVIDER=otel_rl`` the API
calls the first two functions when a program first requests a meter or a tracer.
``opentelemetry-instrument`` makes a ``WorkerConfigurator`` before the program begins. An exception
here would surface in user code, so on any error the program gets the SDK's providers, which report
to nobody.

With ``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=otel_rl`` another SDK reports as the worker.
"""

import logging
import os
import socket
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.resources import OTELResourceDetector, Resource, ResourceDetector
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import TracerProvider

if TYPE_CHECKING:
    from opentelemetry.instrumentation.distro import (  # type: ignore[attr-defined]  # it has mypy ignore the whole module
        BaseDistro,
    )

_log = logging.getLogger("otel_rl")
_logged: list[str] = []


def meter_provider() -> MeterProvider:
    """Return the worker's MeterProvider, or the SDK's, which reports to nobody. Never raises."""
    try:
        # Imported here, so that a broken installation is caught too.
        from otel_rl.worker.session import implicit_session

        session = implicit_session()
        if session is not None and session.settings.metrics.enabled:
            return session.providers.meter
    except Exception as error:  # noqa: BLE001  # the API would raise it in user code
        _log_once(error)
    return SdkMeterProvider(resource=Resource.get_empty(), shutdown_on_exit=False)


def tracer_provider() -> TracerProvider:
    """Return the worker's TracerProvider, or the SDK's, which reports to nobody. Never raises."""
    try:
        from otel_rl.worker.session import implicit_session

        session = implicit_session()
        if session is not None:
            return session.providers.tracer
    except Exception as error:  # noqa: BLE001  # the API would raise it in user code
        _log_once(error)
    return SdkTracerProvider(ALWAYS_OFF, Resource.get_empty(), shutdown_on_exit=False)


class WorkerConfigurator:
    """Starts the worker that the environment describes, before a program's first line."""

    def configure(self, **options: object) -> None:
        """Install otel_rl's providers as the program's. Never raises.

        Without a named experiment the configurator delegates to another installed one: an installed
        otel_rl changes nothing for programs that are not workers.
        """
        try:
            from otel_rl.worker.identity import names_an_experiment
            from otel_rl.worker.settings import CONFIG_FILES

            if not names_an_experiment(os.environ):
                for entry_point in entry_points(group="opentelemetry_configurator"):
                    if entry_point.name != "otel_rl":
                        entry_point.load()().configure(**options)
                        return
            for variable in CONFIG_FILES:
                if path := os.environ.get(variable, "").strip():
                    _log.warning(
                        "otel_rl configures this process by its environment and does not read "
                        "%s (%s). OTEL_PYTHON_CONFIGURATOR names another configurator.",
                        variable,
                        path,
                    )
            from otel_rl.worker.session import implicit_session

            if (session := implicit_session()) is not None:
                session.providers.install()
        except Exception as error:  # noqa: BLE001  # the program must start
            _log_once(error)


def _log_once(error: Exception) -> None:
    """Log the first error only: all entry points fail for the same reason."""
    if not _logged:
        _logged.append(str(error))
        _log.warning("otel_rl cannot start and records nothing: %s", error)


def distro() -> "BaseDistro | None":
    """Return the distro by which ``opentelemetry-instrument`` prefers otel_rl's configurator.

    Return None without a named experiment, so that other distros are used.
    """
    # In the package that has the command, which no other program needs.
    from opentelemetry.instrumentation.distro import (  # type: ignore[attr-defined]  # as above
        BaseDistro,
    )

    from otel_rl.worker.identity import names_an_experiment

    class WorkerDistro(BaseDistro):  # type: ignore[misc]  # see above
        def _configure(self, **_options: object) -> None:
            os.environ.setdefault("OTEL_PYTHON_CONFIGURATOR", "otel_rl")

    return WorkerDistro() if names_an_experiment(os.environ) else None


class WorkerResourceDetector(ResourceDetector):
    """Detects experiment, trial, role, index, count and tag as ``otel_rl.init`` does, and the host.

    Unset attributes are omitted. ``OTEL_RESOURCE_ATTRIBUTES`` takes precedence.
    """

    def detect(self) -> Resource:
        """Return the worker's resource.

        Raises:
            ConfigError: The environment has a wrong value. The SDK logs the error and continues
                without.
        """
        from otel_rl.worker.identity import detect, instance_id
        from otel_rl.worker.launch import launch_of, process_name

        found = detect(os.environ, process_name(), launch=lambda: launch_of(os.environ).id)
        own = {"host.name": socket.gethostname(), "service.instance.id": instance_id(), **found}
        # An older SDK merges its own detector and this one in any order.
        return Resource(own).merge(OTELResourceDetector().detect())
