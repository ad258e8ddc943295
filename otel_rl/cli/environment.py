"""The standard OTel variables that make a command, and all its children, report to a bridge."""

from collections.abc import Mapping
from urllib.parse import quote

from otel_rl.records import ExperimentKey
from otel_rl.semconv import names
from otel_rl.worker.naming import parse_resource_attributes

__all__ = ["reporting_environment"]

# Variables that would lead one signal past the bridge. Traces may well go elsewhere: a Jaeger.
_ELSEWHERE = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL")


def reporting_environment(
    base: Mapping[str, str], *, http: str, key: ExperimentKey, role: str | None = None
) -> dict[str, str]:
    """``base`` with what makes OpenTelemetry report for ``key`` to the bridge at ``http``.

    Args:
        base: The environment to start from; its own resource attributes are kept.
        http: ``HOST:PORT`` of the bridge's OTLP/HTTP.
        key: Experiment and trial.
        role: What the processes are, if they do not say so themselves.
    """
    environment = {name: value for name, value in base.items() if name not in _ELSEWHERE}
    resource = {
        **parse_resource_attributes(base.get("OTEL_RESOURCE_ATTRIBUTES", "")),
        names.RL_EXPERIMENT_NAME: key.experiment,
        names.RL_TRIAL_NAME: key.trial,
    }
    if role is not None:
        resource[names.RL_WORKER_ROLE] = role  # what a stock SDK reads, too
    environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{http}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(
            f"{name}={quote(value, safe='')}" for name, value in resource.items()
        ),
        # A program that knows only the OTel API gets its providers from these.
        "OTEL_PYTHON_METER_PROVIDER": "otel_rl",
        "OTEL_PYTHON_TRACER_PROVIDER": "otel_rl",
        # Under opentelemetry-instrument the first distribution that is found would configure the
        # program, and the package that has this command brings one. Ours chooses the configurator.
        "OTEL_PYTHON_DISTRO": base.get("OTEL_PYTHON_DISTRO", "otel_rl"),
        # One that sets up a stock SDK of its own exports as often as ours, not once a minute.
        "OTEL_METRIC_EXPORT_INTERVAL": base.get("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        "OTEL_METRICS_EXEMPLAR_FILTER": "always_on",
        "OTEL_RL_EXPERIMENT": key.experiment,
        "OTEL_RL_TRIAL": key.trial,
    }
    if role is not None:
        environment["OTEL_RL_ROLE"] = role
    return environment
