"""One worker from its start to its last export, and the providers that outlive it."""

import os
import socket
from time import monotonic, monotonic_ns, time_ns
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

from otel_rl.run_id import run_id
from otel_rl.semconv.names import (
    OTEL_RL_WORKER_SPANS_DROPPED,
    RL_EXPERIMENT_START,
    RL_LOOP_ITERATION,
    RL_ROLLOUT_PROGRESS,
    RL_RUN_ID,
    RL_TRACKER_WANDB_RUN_PATH,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_STACK,
    RL_WORKER_TAG,
)
from otel_rl.version import __version__
from otel_rl.worker import served_policy
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.console import Console
from otel_rl.worker.events.masking import masked_lines
from otel_rl.worker.events.queue import EventQueue, ExitReport, around, uncaught
from otel_rl.worker.events.starts import ProvenanceThread, RunMetadata, with_defaults
from otel_rl.worker.export.sender import Sender, Source, open_transports
from otel_rl.worker.guard import GUARD
from otel_rl.worker.identity import Identity, instance_id
from otel_rl.worker.launch import is_process_of_ray
from otel_rl.worker.metrics.gauges import SCOPE_NAME
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.otlp.requests import Request
from otel_rl.worker.phases.flows import GcTime, show_phases
from otel_rl.worker.phases.hangs import HangWatch
from otel_rl.worker.rollouts import OPEN
from otel_rl.worker.settings import (
    ProvenanceDetail,
    Settings,
)
from otel_rl.worker.system.host import HostRecorder
from otel_rl.worker.system.sampler import GpuSampler
from otel_rl.worker.tracing import CountedSpans, StepSampler, made_tracer_provider

UNREACHED_EXIT_TIMEOUT_S: Final = 0.5
"""``exit_timeout_s`` of an endpoint that never listened: enough for a few attempts."""

_WORKING: Final = 6
"""Times ``exit_timeout_s`` that the end waits in all, as long as each answer comes within that."""

_CROWDED: Final = 0.25
"""Fill of the buffer that triggers an early export."""

_LOOK_S: Final = 1.0
"""Period of looks at the fill."""

_OF_RAY_S: Final = 0.25
"""The same in a process of Ray, which sends what it has at each look: Ray kills the processes of a
job half a second after its driver has ended, and no exit handler runs."""


class Providers:
    """Providers that user code holds for the life of the process, across sessions."""

    def __init__(self, resource: Resource, settings: Settings) -> None:
        self.meter = BufferedMeterProvider(resource, GUARD)
        meter = self.meter.get_meter(SCOPE_NAME, __version__)
        show_phases(meter, GUARD)
        self.gc_time = GcTime(meter)
        self.gpus = GpuSampler(meter, GUARD)
        self.host = HostRecorder(meter, GUARD)
        self.events = EventQueue(resource, GUARD)
        self.console = Console(GUARD)
        self.spans = CountedSpans(resource, settings.span_capacity)
        self.sampler = StepSampler(_run_of(resource))
        sampler = None if settings.trace_steps is None else self.sampler
        self.tracer = made_tracer_provider(resource, self.spans, sampler)
        self.exit_timeout_s = settings.exit_timeout_s
        self.meter.counts_anew(self.spans.guard.drops)
        meter.create_observable_counter(
            OTEL_RL_WORKER_SPANS_DROPPED,
            [self.spans.guard.drops.observe],
            unit="{span}",
            description="Spans that this worker could not deliver.",
        )

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Report as another worker from now on.

        Args:
            keep_buffer: Whether recorded data that is not sent yet belongs to that worker.
        """
        self.meter.restart(resource, keep_buffer=keep_buffer)
        self.gpus.count_anew()
        self.host.forget()
        self.sampler.run_id = _run_of(resource)
        self.spans.bind(resource)
        self.events.bind(resource)
        if not keep_buffer:
            self.events.forget()
            self.console.forget()

    def install(self) -> None:
        """Make these providers the global ones, unless the program has its own."""
        _install_meter_provider(self.meter)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self.tracer)


def _run_of(resource: Resource) -> str:
    return str(resource.attributes.get(RL_RUN_ID, ""))


def resource_of(identity: Identity) -> Resource:
    """Build the resource; ``OTEL_RESOURCE_ATTRIBUTES`` fills in missing attributes."""
    attributes = identity.attributes()
    attributes |= {
        "service.instance.id": instance_id(),
        "process.pid": os.getpid(),
        "telemetry.distro.name": "otel_rl",
        "telemetry.distro.version": __version__,
    }
    found = Resource.create(attributes)
    # Index and tag come from the identity only: a forked child has none, whatever it inherits.
    kept = {
        key: value
        for key, value in found.attributes.items()
        if key in attributes or key not in (RL_WORKER_INDEX, RL_WORKER_COUNT, RL_WORKER_TAG)
    }
    return Resource({"host.name": socket.gethostname(), **kept}, found.schema_url)


def _install_meter_provider(provider: BufferedMeterProvider) -> None:
    # The API cannot report whether a provider is set, but its placeholders live in its own module.
    if type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics"):
        metrics.set_meter_provider(provider)
    elif metrics.get_meter_provider() is not provider:
        GUARD.warn(
            "foreign_meter_provider",
            "The program has set a MeterProvider of its own, so gauges made by the OpenTelemetry "
            "API go there; otel_rl.log is not affected. Add otel_rl.sdk.exact_view() to that "
            "provider's views to keep every measurement, or call otel_rl.init() before it is set.",
        )


class Session:
    """Identity, providers and exporter of one process. The providers outlive it.

    Attributes:
        is_guess: Whether ``init`` may still correct the identity.
        exit_report: Reports errors and the end of the worker.
        is_of_adapter: Whether an adapter has started the session.
        own_run: W&B run that the program has made, see ``report_own_run``.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        providers: Providers,
        *,
        is_guess: bool,
        metadata: RunMetadata | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.is_guess = is_guess
        self.is_of_adapter = False
        self._may_be_killed = is_process_of_ray()
        self.providers = providers
        self._has_reported = self._has_started = False
        self.own_run: str | None = None
        self._ends_silently = self._is_ending = False
        self._started_s = monotonic()
        self.exit_report = ExitReport(
            providers.events,
            GUARD,
            with_message=settings.provenance is not ProvenanceDetail.OFF,
        )
        self._hangs = HangWatch(settings.stack_after_s)
        self._provenance = ProvenanceThread(providers.events, GUARD)
        self._sender = Sender(
            self._source(),
            lambda: open_transports((settings.metrics, settings.logs, settings.traces)),
            settings.interval_s,
            GUARD,
            spans_guard=providers.spans.guard,
        )
        providers.spans.are_wanted = False  # an earlier session may have set it
        if settings.traces.enabled:
            providers.spans.open(self._sender.flush_spans)
        served_policy.forget()
        if settings.console and settings.logs.enabled:
            with GUARD:
                providers.console.start(self, identity.count, self.exit_report.note)
        else:
            providers.console.stop(providers.console.owner)
        if settings.trace_steps is not None:
            providers.sampler.keep(settings.trace_steps)
        if not is_guess:
            self.report_start(metadata or {})
            self._begin_sampling()
        providers.meter.flush = self.flush
        self._sender.start()

    def _source(self) -> Source:
        settings, meter, events = self.settings, self.providers.meter, self.providers.events
        buffer, spans = meter.buffer, self.providers.spans
        crowded = int(buffer.capacity * _CROWDED)
        return Source(
            self._collect,
            abandon=lambda: (buffer.abandon() + events.abandon(), spans.abandon()),
            is_crowded=lambda: (
                len(buffer.entries) >= (1 if self._sends_at_once else crowded)
                or events.is_crowded
                or spans.is_crowded
                or (self._may_be_killed and events.are_waiting)
            ),
            close=self._close,
            heartbeat=lambda: (
                meter.heartbeat() if self._is_worker and settings.metrics.enabled else None
            ),
            unready_since_ns=lambda: min(
                filter(None, (buffer.unready_since_ns, spans.unready_since_ns)), default=None
            ),
            first=lambda: events.requests(events.take_all() if settings.logs.enabled else []),
            last=lambda: (
                self.exit_report.request()
                if self._is_worker and settings.logs.enabled and not self._ends_silently
                else None
            ),
            spans_go_elsewhere=settings.traces.peer != settings.metrics.peer,
            look_every_s=_OF_RAY_S if self._may_be_killed else _LOOK_S,
        )

    def report_start(self, metadata: RunMetadata) -> None:
        with GUARD:
            if not self._has_started:
                metadata = with_defaults(self.settings.config, metadata, GUARD)
                if self.own_run is not None:
                    metadata = {**metadata, RL_TRACKER_WANDB_RUN_PATH: self.own_run}
            self._has_started = True
            if not self.providers.events.add(RL_EXPERIMENT_START, metadata):
                GUARD.drop(DropReason.BUFFER_FULL, "Too much run metadata in one interval.")

    def report_own_run(self, path: str) -> None:
        """Report the path of the W&B run that the program has made. Never raises."""
        self.own_run = path
        self.report_start({RL_TRACKER_WANDB_RUN_PATH: path})

    def correct(self, identity: Identity) -> None:
        """Replace the guessed identity by the one that ``init`` gives."""
        self.is_guess = False
        if identity != self.identity:  # after a correct guess the sums so far are valid
            self._has_started = False  # in the run that it now belongs to
            self.rename(identity)
        self._begin_sampling()

    def rename(self, identity: Identity) -> None:
        """Replace the guessed identity by a better guess."""
        if identity != self.identity:
            if self.settings.inbox is not None:
                from otel_rl.worker.export.inbox import move  # others have an endpoint

                move(self.settings.inbox, run_id(identity.experiment, identity.trial))
            self.identity = identity
            self.providers.restart(resource_of(identity), keep_buffer=True)

    def restart_after_fork(self) -> None:
        self.identity = self.identity.without_place()
        self.is_guess = True  # the child may call init with its own identity
        self._has_reported = self._has_started = False
        self.exit_report.failure = None
        self._provenance.forget()
        self._hangs.forget()
        GUARD.forget()
        self.providers.gpus.forget()
        self.providers.gc_time.forget()
        self.providers.restart(resource_of(self.identity), keep_buffer=False)
        self._sender.restart_after_fork()

    def flush(self, timeout_s: float) -> bool:
        return self._sender.flush(timeout_s)

    def shutdown(
        self, timeout_s: float | None, *, announces_end: bool = True, is_followed: bool = False
    ) -> bool:
        """See ``otel_rl.worker.session.shutdown``.

        Args:
            timeout_s: Maximum blocking time in seconds; None is that of the end of a process.
            announces_end: Whether the worker ends; False if it goes on under another name.
            is_followed: Whether another session follows, so that nobody waits for a bridge to end.
        """
        self._ends_silently = not announces_end
        bridge_s = self.settings.exit_timeout_s
        if timeout_s is None:
            is_delivered = self.shutdown_at_exit()
        else:
            until_s = monotonic() + timeout_s
            is_delivered = self._end(timeout_s)
            bridge_s = until_s - monotonic()
        if self.settings.inbox is not None and announces_end:
            from otel_rl.worker.export.inbox_bridge import wait_for_bridges, want_ends

            if is_followed:
                want_ends()
            else:
                wait_for_bridges(bridge_s)
        return is_delivered

    def shutdown_at_exit(self) -> bool:
        """Shut down without delaying the process for an endpoint that does not exist.

        A configured endpoint gets its full time even if it never listened, counted from the start
        of the session: the bridge may still be starting. An endpoint that works, however slowly,
        gets more.
        """
        timeout_s, unreached_s = self.settings.exit_timeout_s, UNREACHED_EXIT_TIMEOUT_S
        if self.settings.metrics.is_named:
            unreached_s = max(unreached_s, self._started_s + timeout_s - monotonic())
        return self._end(_WORKING * timeout_s, silent_s=timeout_s, unreached_s=unreached_s)

    def _end(
        self, timeout_s: float, *, silent_s: float | None = None, unreached_s: float | None = None
    ) -> bool:
        self.exit_report.note(uncaught())
        self._stop_sampling()
        is_delivered = self._sender.shutdown(timeout_s, silent_s=silent_s, unreached_s=unreached_s)
        GUARD.sum_up()
        return is_delivered

    @property
    def _is_worker(self) -> bool:
        # A forked data loader or another child of a launcher is a worker only once it reports
        # something.
        return self._has_reported or not self.is_guess

    @property
    def _sends_at_once(self) -> bool:
        # A receiver waits for the workers that it knows, so first measurements must not wait.
        return self._may_be_killed or not self._has_reported

    def _collect(self) -> list[Request]:
        if self.settings.traces.enabled:
            with GUARD:
                for request in self.providers.spans.collect():
                    self._sender.put(request)
        with GUARD:
            self.providers.gpus.look()
        measured: list[Request] = []
        if self.settings.metrics.enabled:
            measured = self.providers.meter.collect(with_heartbeat=True)
        else:
            self.providers.meter.discard()
        if self.settings.logs.enabled:
            with GUARD:
                self._send_stacks()
            with GUARD:
                self._send_rollouts()
        events = self.providers.events.take_all()
        self._has_reported = self._has_reported or bool(measured or events)
        if self._is_worker and not self._has_started:
            self.report_start({})
            self._begin_sampling()
            events = self.providers.events.take_all() + events
        if not self.settings.logs.enabled:
            return measured
        first, last = around(events)
        if self._is_worker and self.settings.console:
            with GUARD:
                first = [*first, *self.providers.console.take(is_last=self._is_ending)]
        before, after = map(self.providers.events.requests, (first, last))
        return [*before, *measured, *after]

    def _send_stacks(self) -> None:
        for stack in self._hangs.look(monotonic_ns(), time_ns()):
            host = str(self.providers.meter.resource.attributes["host.name"])
            fields = stack.fields(host, masked_lines)
            attributes: dict[str, Plain] = {}
            if stack.step is not None:
                attributes[RL_LOOP_ITERATION] = stack.step
            if not self.providers.events.add(RL_WORKER_STACK, attributes, fields):
                GUARD.drop(DropReason.BUFFER_FULL, "Too many events in one interval.")

    def _send_rollouts(self) -> None:
        """Add events of open rollouts. A rollout without room is reported later."""
        now_ns = monotonic_ns()
        for one in OPEN.due(now_ns):
            OPEN.told(one, now_ns)
            attributes: dict[str, Plain] = {}
            if one.step is not None:
                attributes[RL_LOOP_ITERATION] = one.step
            if not self.providers.events.add(RL_ROLLOUT_PROGRESS, attributes, one.body()):
                one.due_ns = 0
                return

    def _begin_sampling(self) -> None:
        if self._is_ending:  # the last collection may be the worker's first report
            return
        if self.settings.measures_gc:
            self.providers.gc_time.start()
        else:
            self.providers.gc_time.forget()
        mfu = self.settings.mfu
        if mfu.model_flops_per_token is not None and not mfu.is_known:
            GUARD.warn(
                "mfu_without_peak", "No MFU is reported: OTEL_RL_PEAK_FLOPS_PER_S is not set."
            )
        if self.settings.metrics.enabled:
            self.providers.gpus.start(self.settings.gpu, self.identity.role)
            host = str(self.providers.meter.resource.attributes["host.name"])
            self.providers.host.start(self.settings.host, host, self.identity.run_id)
        detail = self.settings.provenance
        if self.settings.logs.enabled and detail is not ProvenanceDetail.OFF:
            with_code = detail is ProvenanceDetail.FULL and not self.identity.index
            self._provenance.start(with_code=with_code)

    def _stop_sampling(self) -> None:
        self._is_ending = True
        self.providers.gc_time.stop()
        self.providers.gpus.stop()
        self.providers.host.forget()
        self._provenance.stop()

    def _close(self) -> None:
        if self.providers.meter.flush == self.flush:
            self.providers.meter.flush = None
        self.providers.console.stop(self)
        self.providers.spans.close(self._sender.flush_spans)
