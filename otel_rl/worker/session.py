"""Session of a worker process (init, flush, shutdown), from its environment to its last export.

``init`` reports all configuration errors before any thread runs; afterwards nothing here raises
into training code. A session begins in one of two ways: ``init`` names the worker, or the zero-code
plug-ins guess it from the environment; a later ``init`` then corrects the guess.
"""

import atexit
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, monotonic_ns, time_ns
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.util.types import AttributeValue

from otel_rl.errors import ConfigError
from otel_rl.redaction import redacted
from otel_rl.run_id import run_id
from otel_rl.semconv.names import (
    OTEL_RL_WORKER_SPANS_DROPPED,
    RL_EXPERIMENT_START,
    RL_LOOP_ITERATION,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_STACK,
    RL_WORKER_TAG,
)
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker import served_policy
from otel_rl.worker.child_threads import after_threads_of_fork, join_threads_of_child
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.events.console import Console
from otel_rl.worker.events.exit_report import ExitReport
from otel_rl.worker.events.exit_status import uncaught
from otel_rl.worker.events.provenance_thread import ProvenanceThread
from otel_rl.worker.events.queue import EventQueue, around, text_chars
from otel_rl.worker.events.run_metadata import RunMetadata, validated_metadata, with_config
from otel_rl.worker.export.exporter import Exporter, Source
from otel_rl.worker.export.ray_calls import watch_calls
from otel_rl.worker.export.transport import open_transport
from otel_rl.worker.gpu import GpuOptions, GpuSampler, MfuOptions, ModelFlops
from otel_rl.worker.guard import Guard
from otel_rl.worker.host import HostRecorder
from otel_rl.worker.identity.launcher import process_name
from otel_rl.worker.identity.names import DEFAULT_ROLE
from otel_rl.worker.identity.rank import invalid_place
from otel_rl.worker.identity.resource import Identity, identify
from otel_rl.worker.later_providers import take_later
from otel_rl.worker.metrics.expander import SCOPE_NAME
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.otlp.request_packer import Request
from otel_rl.worker.phases.gc_time import GcTime
from otel_rl.worker.phases.hangs import HangWatch
from otel_rl.worker.phases.open_phases import count_open, show_phases
from otel_rl.worker.phases.open_spans import show_open_spans
from otel_rl.worker.sdk_resources import Resource, ServiceInstanceIdResourceDetector
from otel_rl.worker.settings import (
    DEFAULT_EXIT_TIMEOUT_S,
    ProvenanceDetail,
    Settings,
    exporters_beside_otlp,
    read_settings,
)
from otel_rl.worker.tracing.launcher_trace import continue_launcher_trace
from otel_rl.worker.tracing.provider import SpanSender, WorkerTracerProvider
from otel_rl.worker.tracing.sharing import share_with_later
from otel_rl.worker.tracing.span_buffer import SpanBuffer

__all__ = [
    "GUARD",
    "Session",
    "change_trial",
    "flush",
    "implicit_session",
    "init",
    "install_from_environment",
    "is_disabled",
    "running",
    "shutdown",
    "start_from_environment",
    "started_or_dropped",
]

GUARD: Final = Guard(Drops())
"""Counts the losses of the process, before and after ``init``."""

UNREACHED_EXIT_TIMEOUT_S: Final = 0.5
"""``exit_timeout_s`` of an endpoint that never listened: enough for a few attempts."""

_CHANGE_TIMEOUT_S: Final = 1.0
"""Maximum time that ``init`` spends delivering records of a guess to another endpoint."""

_CROWDED: Final = 0.25
"""Fill of the buffer that triggers an early export."""


class Session:
    """Identity, providers and exporter of one process.

    Args:
        identity: Identity of the process.
        settings: Export settings.
        providers: Those of an earlier session of this process, whose instruments live on.
        is_guess: True if ``init`` may still correct the identity.
        metadata: Run metadata passed to ``init``.

    Attributes:
        exit_report: Reports errors and the end of the worker.
        is_of_adapter: True if an adapter has started it.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        providers: "_Providers",
        *,
        is_guess: bool,
        metadata: RunMetadata | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.model_flops = ModelFlops(settings.mfu, GUARD)
        self.is_guess = is_guess
        self.is_of_adapter = False
        self.providers = providers
        self._spans: SpanSender | None = None
        providers.spans.are_wanted = False  # an earlier session may have set it
        if settings.traces.enabled:
            self._spans = SpanSender(providers.spans, settings.traces, settings.span_interval_s)
        self._has_reported = self._has_started = False
        self._ends_silently = self._is_ending = self._is_followed = False
        self._started_s = monotonic()
        self.exit_report = ExitReport(
            providers.events,
            GUARD,
            with_message=settings.provenance is not ProvenanceDetail.OFF,
        )
        self._hangs = HangWatch(settings.stack_after_s)
        self._provenance = ProvenanceThread(providers.events, GUARD)
        self._exporter = Exporter(
            self._source(),
            lambda signal, beside: open_transport(
                settings.logs if signal is Signal.LOGS else settings.metrics, beside
            ),
            settings.interval_s,
            GUARD,
        )
        served_policy.forget()
        if settings.console and settings.logs.enabled:
            with GUARD:
                providers.console.start(self, identity.count)
        else:
            providers.console.stop(providers.console.owner)
        if settings.trace_steps is not None:
            providers.tracer.keep_steps(settings.trace_steps)
        providers.gpus.prepare(settings.gpu)
        providers.host.prepare(settings.host)
        if not is_guess:
            self.report_start(metadata or {})
            self._begin_sampling()
        providers.meter.reader = self
        self._exporter.start()

    def _source(self) -> Source:
        """Return what the exporter asks this session for."""
        settings, meter, events = self.settings, self.providers.meter, self.providers.events
        buffer, spans = meter.buffer, self._spans
        crowded = int(buffer.capacity * _CROWDED)
        return Source(
            self._collect,
            abandon=lambda: 0 if self._is_followed else buffer.abandon() + events.abandon(),
            is_crowded=lambda: (
                len(buffer.entries) >= (crowded if self._has_reported else 1) or events.is_crowded
            ),
            flush_beside=(lambda _timeout_s: None) if spans is None else spans.flush,
            close=self._close,
            heartbeat=lambda: (
                meter.heartbeat() if self._is_worker and settings.metrics.enabled else None
            ),
            unready_since_ns=lambda: buffer.unready_since_ns,
            first=lambda: events.requests(events.take_all() if settings.logs.enabled else []),
            last=lambda: (
                self.exit_report.request()
                if self._is_worker and settings.logs.enabled and not self._ends_silently
                else None
            ),
        )

    def report_start(self, metadata: RunMetadata) -> None:
        """Report the start of the run, with its metadata. Never raises."""
        with GUARD:
            if not self._has_started:
                metadata = with_config(self.settings.config, metadata, GUARD)
            self._has_started = True
            if not self.providers.events.add(RL_EXPERIMENT_START, metadata):
                GUARD.drop(DropReason.BUFFER_FULL, "Too much run metadata in one interval.")

    def correct(self, identity: Identity) -> None:
        """Replace the guessed identity by the one from ``init``."""
        self.is_guess = False
        if identity != self.identity:  # after a correct guess the sums so far are valid
            self.identity = identity
            self._has_started = False  # in the run that it now belongs to
            self.providers.restart(_resource(identity), keep_buffer=True)
        self._begin_sampling()

    def restart_after_fork(self) -> None:
        """Become a separate worker in a forked child."""
        self.identity = self.identity.without_place()
        self.is_guess = True  # the child may call init with its own identity
        self._has_reported = self._has_started = False
        was_followed = self._is_followed
        if was_followed:  # the parent is between two trials
            self._is_ending = self._is_followed = False
            self.providers.meter.reader = self
        self.exit_report.failure = None
        self._provenance.forget()
        self._hangs.forget()
        self.model_flops = ModelFlops(self.settings.mfu, GUARD)
        GUARD.drops.reset()
        self.providers.gpus.forget()
        self.providers.gc_time.forget()
        self.providers.restart(_resource(self.identity), keep_buffer=False)
        if self._spans is not None:
            self._spans.restart_after_fork()
        self._exporter.restart_after_fork(is_ending=not was_followed)

    def flush(self, timeout_s: float) -> bool:
        """See ``flush`` of the module."""
        return self._exporter.flush(timeout_s)

    def hurry(self) -> None:
        """Make the exporters send recorded data now, without waiting for them."""
        self._exporter.hurry()
        if self._spans is not None:
            self._spans.hurry()

    def shutdown(
        self, timeout_s: float, *, announces_end: bool = True, is_followed: bool = False
    ) -> bool:
        """See ``shutdown`` of the module.

        Args:
            timeout_s: Maximum blocking time.
            announces_end: False if the worker goes on under another name.
            is_followed: True if what is recorded from now on is another session's.
        """
        self._ends_silently = not announces_end
        self._is_followed = is_followed
        self.exit_report.note(uncaught())
        self._stop_sampling()
        return self._exporter.shutdown(timeout_s)

    def shutdown_at_exit(self) -> bool:
        """Shut down without delaying the process for an endpoint that does not exist.

        A configured endpoint gets its full time even if it never listened, counted from the start
        of the session: the bridge may still be starting.
        """
        # In a multiprocessing child the finalizers run while the target's exception propagates.
        self.exit_report.note(sys.exception() or uncaught())
        self._stop_sampling()
        timeout_s, unreached_s = self.settings.exit_timeout_s, UNREACHED_EXIT_TIMEOUT_S
        if self.settings.metrics.is_named:
            unreached_s = max(unreached_s, self._started_s + timeout_s - monotonic())
        return self._exporter.shutdown(timeout_s, unreached_s)

    @property
    def _is_worker(self) -> bool:
        # A forked data loader or another child of a launcher is a worker only once it reports
        # something.
        return self._has_reported or not self.is_guess

    def _collect(self) -> list[Request]:
        if self.settings.traces.enabled:
            with GUARD:
                show_open_spans(self.providers.tracer, monotonic_ns())
        measured: list[Request] = []
        if self.settings.metrics.enabled:
            measured = self.providers.meter.collect(with_heartbeat=True)
        else:
            self.providers.meter.discard()
            self.providers.meter.steps.take()
        if self.settings.logs.enabled:
            with GUARD:
                self._send_stacks()
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
        """Report the stacks of flows whose phases take too long."""
        for stack in self._hangs.look(monotonic_ns(), time_ns()):
            from otel_rl.worker.events.masking import masked_lines  # not before it is needed

            host = str(self.providers.meter.resource.attributes["host.name"])
            fields = stack.fields(host, masked_lines)
            attributes: dict[str, Plain] = {}
            if stack.step is not None:
                attributes[RL_LOOP_ITERATION] = stack.step
            size = text_chars(fields)
            if not self.providers.events.add(RL_WORKER_STACK, attributes, fields, text_chars=size):
                GUARD.drop(DropReason.BUFFER_FULL, "Too many events in one interval.")

    def _begin_sampling(self) -> None:
        if not self._is_ending:
            self.providers.gc_time.start()
        if self.settings.metrics.enabled and not self._is_ending:
            self.providers.gpus.start(self.settings.gpu, self.identity.role)
            host = str(self.providers.meter.resource.attributes["host.name"])
            self.providers.host.start(self.settings.host, host, self.identity.run_id)
            self.model_flops.start()
        detail = self.settings.provenance
        if self.settings.logs.enabled and detail is not ProvenanceDetail.OFF:
            with_code = detail is ProvenanceDetail.FULL and not self.identity.index
            self._provenance.start(with_code=with_code)

    def _stop_sampling(self) -> None:
        self._is_ending = True  # the last collection may be the worker's first report
        self.providers.gc_time.stop()
        self.providers.gpus.stop()
        self.providers.host.forget()
        self._provenance.stop()

    def _close(self) -> None:
        if self.providers.meter.reader is self:
            self.providers.meter.reader = None
        self.providers.console.stop(self)
        if self._spans is not None:
            self._spans.close()


class _Providers:
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
        keeps_steps = settings.trace_steps is not None
        self.spans = SpanBuffer(settings.span_capacity)
        self.tracer = WorkerTracerProvider(resource, self.spans, keeps_steps=keeps_steps)
        self.meter.counts_anew(self.spans.guard.drops)
        meter.create_observable_counter(
            OTEL_RL_WORKER_SPANS_DROPPED,
            [self.spans.guard.drops.observe],
            unit="{span}",
            description="Spans that this worker could not deliver.",
        )

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        self.meter.restart(resource, keep_buffer=keep_buffer)
        self.gpus.count_anew()
        self.host.forget()
        self.tracer.change_resource(resource)
        self.events.bind(resource)
        if not keep_buffer:
            self.events.forget()
            self.console.forget()

    def install(self) -> None:
        """Make these the global providers, unless the program has its own."""
        _install_meter_provider(self.meter)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self.tracer)
        share_with_later(self.tracer, self.spans.guard)
        take_later(metrics, "meter", self.meter, self.meter.share_with)


# _lock guards the three below. Re-entrant: asking the API for the global provider may load the
# plug-in, which asks for the session.
_lock = threading.RLock()
_session: Session | None = None
_has_ended = False  # after shutdown only init starts another worker
_providers: _Providers | None = None

_waited_in_vain = False
"""True if the endpoint did not take all of the trial before."""

_watched: Session | None = None
"""Session that children of ``multiprocessing`` flush."""


def init(
    *,
    experiment: str | None = None,
    role: str | None = None,
    trial: str | None = None,
    index: int | None = None,
    count: int | None = None,
    tag: str | None = None,
    endpoint: str | None = None,
    export_interval_s: float | None = None,
    resource_attributes: Mapping[str, AttributeValue] | None = None,
    config: Mapping[str, object] | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    gpu: bool | GpuOptions | None = None,
    mfu: MfuOptions | None = None,
) -> None:
    """Start reporting as a worker of an experiment. After it returns, nothing raises.

    Sets the global OpenTelemetry providers unless the program has set its own. Call it once per
    process; a second call with the same arguments does nothing.

    Args:
        experiment: Groups all workers of a run; default ``OTEL_RL_EXPERIMENT``.
        role: trainer, generator, replay_buffer, env, reward, or any word; default ``OTEL_RL_ROLE``.
        trial: One run of the experiment; default ``OTEL_RL_TRIAL``, else ``default``.
        index: Index among the workers of the role, from 0; default from the launcher.
        count: Number of workers of the role; default from the launcher.
        tag: ``training`` or ``evaluation``, or any word.
        endpoint: Base URL of the bridge or collector; default ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        export_interval_s: Seconds; default ``OTEL_METRIC_EXPORT_INTERVAL``, else 1.
        resource_attributes: Further attributes of the process.
        config: Hyper-parameters of the run. See ``log_config``.
        notes: Free text about the run.
        tags: Tags of the run, merged with those of the other workers.
        group: Name shared by several runs.
        job_type: Kind of the run within its group.
        gpu: True samples the process's GPUs; options select how, e.g. ``{"roles": ["trainer"]}``;
            default ``OTEL_RL_GPU``, else no sampling.
        mfu: ``{"model_flops_per_token": ...}`` reports ``rl.train.mfu`` of each step; default
            ``OTEL_RL_MODEL_FLOPS_PER_TOKEN``, else none.

    Raises:
        ConfigError: An argument or variable is wrong, or the process already reports as another
            worker. The message names it, its value and the remedy.
    """
    identity = identify(
        os.environ,
        experiment=experiment,
        trial=trial,
        role=role,
        index=index,
        count=count,
        tag=tag,
        resource_attributes=resource_attributes,
        process_name=process_name(),
    )
    settings = read_settings(
        os.environ, endpoint=endpoint, export_interval_s=export_interval_s, gpu=gpu, mfu=mfu
    )
    _check_files(settings)
    metadata = validated_metadata(
        GUARD, config=config, notes=notes, tags=tags, group=group, job_type=job_type
    )
    _begin(identity, settings, metadata)


def _begin(identity: Identity, settings: Settings, metadata: RunMetadata) -> None:
    """Start the session of the process, or check that it is the one that has begun."""
    with _lock:
        if _session is None:
            _start(identity, settings, is_guess=False, metadata=metadata)
        elif _session.is_guess:
            _replace_guess(_session, identity, settings, metadata)
        elif not _is_same(_session.identity, identity) or _session.settings != settings:
            raise ConfigError(
                f"init: this process already reports as {_describe(_session.identity)} to "
                f"{redacted(_session.settings.metrics.url)} (got {_describe(identity)} to "
                f"{redacted(settings.metrics.url)}).",
                hint="Call otel_rl.shutdown() first, or call init() once.",
            )
        elif metadata:
            _session.report_start(metadata)
        if not settings.disabled and _providers is not None:
            with GUARD:
                _providers.install()


def flush(*, timeout_s: float = DEFAULT_EXIT_TIMEOUT_S) -> bool:
    """Send everything recorded before the call. Never raises.

    Args:
        timeout_s: Maximum blocking time.

    Returns:
        True if the endpoint accepted it; False on timeout or before ``init``.
    """
    session = _session
    return session.flush(timeout_s) if session is not None else False


def shutdown(*, timeout_s: float = DEFAULT_EXIT_TIMEOUT_S) -> bool:
    """Send everything and stop reporting. Runs automatically at exit. Idempotent, never raises.

    Args:
        timeout_s: Maximum blocking time.

    Returns:
        True if everything was delivered. Losses are counted and logged.
    """
    session = _ended_session()
    return session.shutdown(timeout_s) if session is not None else True


def change_trial(
    trial: str | None, config: Mapping[str, object], failure: Exception | None = None
) -> None:
    """Deliver what was recorded so far, and go on as the same worker in another trial.

    Never raises.

    Args:
        trial: Its name; None stops reporting until something is recorded again.
        config: Its hyper-parameters.
        failure: What has ended the trial so far.
    """
    global _session, _waited_in_vain  # one session per process
    with GUARD:
        session = _session
        if session is None or trial == session.identity.trial:
            return
        session.exit_report.note(failure)
        # Without the lock, and still the session: what other threads and callbacks of instruments
        # record meanwhile must not wait, and is of what follows.
        timeout_s = session.settings.exit_timeout_s
        if _waited_in_vain:  # a sweep may have thousands of short trials
            timeout_s = min(timeout_s, UNREACHED_EXIT_TIMEOUT_S)
        _waited_in_vain = not session.shutdown(timeout_s, is_followed=True)
    with GUARD, _lock:
        if session is None or _session is not session:
            return  # the program has ended it
        _session = None
        if trial is None:
            return
        identity = session.identity
        identity = replace(identity, trial=trial, run_id=run_id(identity.experiment, trial))
        settings = replace(session.settings, config=config)
        started = _start(identity, settings, is_guess=session.is_guess)
        if started is not None:
            started.is_of_adapter = session.is_of_adapter


def _is_same(begun: Identity, identity: Identity) -> bool:
    """Report whether ``init`` names the worker that has begun; adapters leave out the count."""
    return begun == identity or (begun.count is None and begun == replace(identity, count=None))


def _hurry() -> None:
    session = _session
    if session is not None:
        session.hurry()


def _shutdown_at_exit() -> None:
    session = _ended_session()
    if session is not None:
        count_open(GUARD)
        session.shutdown_at_exit()


def _ended_session() -> Session | None:
    """Remove and return the session."""
    global _session, _has_ended  # one session per process
    with _lock:
        session, _session = _session, None
        _has_ended = _has_ended or session is not None
    return session


def running() -> Session | None:
    """Return the session, or None before ``init`` and after ``shutdown``."""
    return _session


def implicit_session() -> Session | None:
    """Return the session; start it from the environment alone if there is none.

    Returns:
        None if ``OTEL_SDK_DISABLED`` is set, or after ``shutdown``.

    Raises:
        ConfigError: The environment lacks the experiment, or has a wrong value.
    """
    with _lock:
        if _session is not None or _has_ended:
            return _session
        settings = read_settings(os.environ)
        _check_files(settings)
        identity = identify(os.environ, default_role=DEFAULT_ROLE, process_name=process_name())
        return _start(identity, settings, is_guess=True)


def install_from_environment() -> None:
    """Run ``implicit_session`` and install its providers, unless the program has its own.

    Raises:
        ConfigError: See ``implicit_session``.
    """
    with _lock:
        if implicit_session() is not None and _providers is not None:
            _providers.install()


def start_from_environment() -> Session | None:
    """Variant of ``implicit_session`` for calls in a training loop: never raises.

    Returns:
        Also None without ``OTEL_RL_EXPERIMENT``.
    """
    if is_disabled() or not os.environ.get("OTEL_RL_EXPERIMENT"):
        return None
    try:
        return implicit_session()
    except Exception as error:  # noqa: BLE001  # nothing may raise into training code
        GUARD.warn("bad_environment", f"otel_rl cannot start: {error}")
        return None


def started_or_dropped(call: str, lost: int = 1) -> Session | None:
    """Return the session, started from the environment if necessary. Never raises.

    Args:
        call: The program's call, for the message.
        lost: Number of items counted as lost if there is no session.
    """
    started = _session or start_from_environment()
    if started is None and not is_disabled():
        GUARD.drop(
            DropReason.NOT_STARTED,
            f"{call} was called before otel_rl.init() or after otel_rl.shutdown(); the call "
            'is dropped. Call otel_rl.init(experiment="...", role="...") first, or set '
            "OTEL_RL_EXPERIMENT.",
            lost,
        )
    return started


def is_disabled() -> bool:
    """Report whether ``OTEL_SDK_DISABLED`` is set."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _replace_guess(
    guess: Session, identity: Identity, settings: Settings, metadata: RunMetadata
) -> None:
    """Continue as the worker that ``init`` names. The caller holds the lock."""
    if guess.settings == settings:
        guess.correct(identity)
        guess.report_start(metadata)
    else:
        ended = _ended_session()
        if ended is not None:
            ended.shutdown(_CHANGE_TIMEOUT_S, announces_end=False)
        _start(identity, settings, is_guess=False, metadata=metadata)


def _start(
    identity: Identity, settings: Settings, *, is_guess: bool, metadata: RunMetadata | None = None
) -> Session | None:
    """Start the session. The caller holds the lock."""
    global _session, _providers, _has_ended  # one session per process
    if settings.disabled:
        return None
    for line in exporters_beside_otlp(os.environ):
        GUARD.warn(line, f"{line}.")
    if identity.index is None and (place := invalid_place(os.environ)) is not None:
        GUARD.warn(
            "place",
            f"{place} is not a valid index and count, so this worker has no index and the "
            "bridge assigns one. Set OTEL_RL_INDEX and OTEL_RL_COUNT, or correct them.",
        )
    if _providers is None:
        _providers = _Providers(_resource(identity), settings)
        # After the providers: the SDK registers its own fork handlers, and ours must run later.
        os.register_at_fork(after_in_child=_after_fork_in_child)
        atexit.register(_shutdown_at_exit)
    else:
        _providers.restart(_resource(identity), keep_buffer=True)
    _session = Session(identity, settings, _providers, is_guess=is_guess, metadata=metadata)
    _has_ended = False
    with GUARD:
        watch_calls(_hurry, GUARD)
        continue_launcher_trace(os.environ)
    _flush_at_end_of_multiprocessing_child(_session)
    _watch_multiprocessing()
    return _session


def _after_fork_in_child() -> None:
    global _lock  # a thread of the parent may hold its lock
    _lock = threading.RLock()
    if _session is not None and _providers is not None:
        with GUARD:
            _session.restart_after_fork()
            after_threads_of_fork(_shutdown_at_exit)
    _watch_multiprocessing()


def _watch_multiprocessing() -> None:
    """Have each child that ``multiprocessing`` forks flush at its end.

    A process that has not loaded it neither is nor has such a child. Whatever loads it later does
    so before it forks, and then the fork is the time to watch: the child's first step is to forget
    the parent's finalizers and to call what is registered here.
    """
    global _watched  # the session of the last registration
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _session is not None and _watched is not _session:
        util.register_after_fork(_session, _flush_at_end_of_multiprocessing_child)
        _watched = _session


def _flush_at_end_of_multiprocessing_child(_session_of_parent: Session) -> None:
    """Register the shutdown for a child that ends with ``os._exit``, which skips atexit.

    The low priority runs it after the finalizers of user code, which may still record.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _shutdown_of_child, exitpriority=-100)


def _shutdown_of_child() -> None:
    try:
        join_threads_of_child()
    finally:  # Ctrl-C ends the wait
        _shutdown_at_exit()


def _resource(identity: Identity) -> Resource:
    """Build the resource; ``OTEL_RESOURCE_ATTRIBUTES`` fills in missing attributes."""
    attributes = identity.attributes()
    # The SDK's own detector, so that its tracers have the same id after a fork.
    attributes.update(ServiceInstanceIdResourceDetector().detect().attributes)
    attributes |= {
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
            "API go there; mlogger is not affected. Add otel_rl.exact_view() to that provider's "
            "views to keep every measurement, or call otel_rl.init() before it is set.",
        )


def _check_files(settings: Settings) -> None:
    for signal in (settings.metrics, settings.traces, settings.logs):
        for variable, path in signal.files if signal.enabled and not settings.disabled else ():
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as exc:
                raise ConfigError(
                    f"{variable}: {exc.strerror or type(exc).__name__} (got {path!r}).",
                    hint="Correct the path or unset it.",
                ) from exc


def _describe(identity: Identity) -> str:
    place = "" if identity.index is None else f" {identity.index}"
    return f"{identity.role}{place} of {identity.experiment}/{identity.trial}"
