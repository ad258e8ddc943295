"""The TracerProvider of a worker: the SDK's, with a resource that follows forks and ``init``."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Tracer
from opentelemetry.util.types import Attributes
from requests import Session
from requests.adapters import HTTPAdapter

from otel_rl.semconv.names import RL_RUN_ID
from otel_rl.worker.sampling import StepSampler
from otel_rl.worker.settings import Protocol, SignalSettings
from otel_rl.worker.transport import http_session

__all__ = ["SpanSender", "WorkerTracerProvider"]


class WorkerTracerProvider(TracerProvider):
    """An SDK TracerProvider whose resource can change while tracers are in use.

    Args:
        resource: Whose spans these are.
        keeps_steps: Whether spans are kept by their steps, not as ``OTEL_TRACES_SAMPLER`` says.
    """

    def __init__(self, resource: Resource, *, keeps_steps: bool = True) -> None:
        self._current = resource
        self._steps = StepSampler()
        self._steps.run_id = _run_id(resource)
        self._used: list[SdkTracer] = []
        # Without a provider of its own the SDK would ask for the global one from inside a lock.
        super().__init__(
            sampler=self._steps if keeps_steps else None,
            resource=resource,
            shutdown_on_exit=False,
            meter_provider=NoOpMeterProvider(),
        )

    @property
    def resource(self) -> Resource:
        """Whose spans these are now."""
        return self._current

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> Tracer:
        """See ``opentelemetry.trace.TracerProvider.get_tracer``."""
        tracer = super().get_tracer(
            instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        )
        if isinstance(tracer, SdkTracer) and not any(tracer is used for used in self._used):
            tracer.resource = self._current
            self._used.append(tracer)
        return tracer

    def change_resource(self, resource: Resource) -> None:
        """Spans that start from now on are of ``resource``."""
        self._current = resource
        self._steps.run_id = _run_id(resource)
        for tracer in tuple(self._used):
            tracer.resource = resource

    def keep_steps(self, share: float) -> None:
        """Traces that start from now on are kept if they are of a share of all steps."""
        self._steps.keep(share)


def _run_id(resource: Resource) -> str:
    return str(resource.attributes.get(RL_RUN_ID, ""))


class SpanSender:
    """Batches spans and sends them where ``signal`` says. Survives a fork.

    Args:
        signal: Endpoint and protocol.
    """

    def __init__(self, signal: SignalSettings) -> None:
        self._session: Session | None = None
        if signal.protocol is Protocol.GRPC:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter as GrpcSpanExporter,
            )

            exporter: SpanExporter = GrpcSpanExporter(
                endpoint=signal.url, insecure=signal.insecure, meter_provider=NoOpMeterProvider()
            )
        else:
            self._session = http_session(signal)
            exporter = OTLPSpanExporter(
                endpoint=signal.url, session=self._session, meter_provider=NoOpMeterProvider()
            )
        self.processor = BatchSpanProcessor(exporter, meter_provider=NoOpMeterProvider())
        """To be added to a TracerProvider."""

    def restart_after_fork(self) -> None:
        """Open connections of the child's own: two processes on one connection garble it."""
        if self._session is not None:
            for prefix in tuple(self._session.adapters):
                self._session.mount(prefix, HTTPAdapter())
