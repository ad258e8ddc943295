"""init, flush, shutdown: one session per process, from its environment to its last export.

Everything that can be wrong is wrong in ``init``, before any thread runs. After it, nothing here
raises into training code. A session begins in one of two ways: ``init`` says who the process is,
or the zero-code plug-ins guess it from the environment; a later ``init`` then corrects the guess.
"""

import atexit
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource, ServiceInstanceIdResourceDetector
from opentelemetry.util.types import AttributeValue

from otel_rl import __version__
from otel_rl.errors import ConfigError
from otel_rl.records import Signal
from otel_rl.semconv.names import (
    ERROR_TYPE,
    OTEL_RL_WORKER_SPANS_DROPPED,
    RL_EXPERIMENT_START,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_STATUS,
    RL_WORKER_TAG,
    RlWorkerStatusValues,
)
from otel_rl.shown import redacted
from otel_rl.worker import serving
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.encode import Request
from otel_rl.worker.ending import type_name, uncaught
from otel_rl.worker.events import Events, around
from otel_rl.worker.expand import SCOPE_NAME
from otel_rl.worker.export import Exporter, Source
from otel_rl.worker.gc_time import GcTime
from otel_rl.worker.gpu import GpuOptions, GpuSampler
from otel_rl.worker.guard import Guard
from otel_rl.worker.identity import Identity, identify
from otel_rl.worker.launcher import process_name
from otel_rl.worker.liveness import count_open, show_phases
from otel_rl.worker.naming import DEFAULT_ROLE
from otel_rl.worker.open_spans import show_open_spans
from otel_rl.worker.place import place_that_is_none
from otel_rl.worker.provider import BufferedMeterProvider
from otel_rl.worker.ray_calls import watch_calls
from otel_rl.worker.said import Said, what_is_said
from otel_rl.worker.settings import (
    Settings,
    exporters_beside_otlp,
    read_settings,
)
from otel_rl.worker.span_buffer import SpanBuffer
from otel_rl.worker.tracing import SpanSender, WorkerTracerProvider
from otel_rl.worker.transport import open_transport

__all__ = [
    "GUARD",
    "Session",
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
"""Counts what the process loses, before and after ``init``."""

EXIT_TIMEOUT_S: Final = 5.0
"""How long the end of a process may wait for the endpoint."""

UNREACHED_EXIT_TIMEOUT_S: Final = 0.5
"""The same if nobody has ever listened there: enough for a few attempts."""

_CHANGE_TIMEOUT_S: Final = 1.0
"""How long ``init`` may wait to deliver what was recorded under a guess to another endpoint."""

_CROWDED: Final = 0.25
"""Fill of the buffer at which it is emptied before the interval is over."""


class Session:
    """One process's identity, providers and exporter.

    Args:
        identity: Who the process is.
        settings: Where it exports.
        providers: Those of an earlier session of this process, whose instruments live on.
        is_guess: Whether ``init`` may still say otherwise.
        said: What ``init`` was told of the run.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        providers: "_Providers",
        *,
        is_guess: bool,
        said: Said | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.is_guess = is_guess
        self.providers = providers
        self._spans: SpanSender | None = None
        providers.spans.are_wanted = False  # whatever an earlier session did with them
        if settings.traces.enabled:
            self._spans = SpanSender(providers.spans, settings.traces, settings.span_interval_s)
        buffer = providers.meter.buffer
        crowded = int(buffer.capacity * _CROWDED)
        events = providers.events
        self._has_spoken = False
        self._exporter = Exporter(
            Source(
                self._collect,
                lambda: buffer.abandon() + events.abandon(),
                lambda: (
                    len(buffer.entries) >= (crowded if self._has_spoken else 1) or events.is_crowded
                ),
                self._flush_spans,
                self._close,
                self._heartbeat,
                self._greeting,
                self._goodbye,
            ),
            lambda signal, beside: open_transport(
                settings.logs if signal is Signal.LOGS else settings.metrics, beside
            ),
            settings.interval_s,
            GUARD,
        )
        self._has_started = False
        self._ends_silently = self._is_ending = False
        self.failure: str | None = None
        """The error for which the worker will say that it has failed, when it ends."""
        self._started_s = monotonic()
        serving.forget()
        if settings.trace_steps is not None:
            providers.tracer.keep_steps(settings.trace_steps)
        providers.gpus.prepare(settings.gpu)
        if not is_guess:
            self.say_start(said or {})
            self._begin_sampling()
        providers.meter.reader = self
        self._exporter.start()

    def say_start(self, said: Said) -> None:
        """Say that the run is running, and what is to be said of it. Never raises."""
        with GUARD:
            self._has_started = True
            if not self.providers.events.say(RL_EXPERIMENT_START, said):
                GUARD.drop(DropReason.BUFFER_FULL, "Too much was said of the run in one interval.")

    def correct(self, identity: Identity) -> None:
        """Take the identity that ``init`` gives for the one that was guessed."""
        self.is_guess = False
        if identity != self.identity:  # of a good guess the sums so far are right
            self.identity = identity
            self.providers.restart(_resource(identity), keep_buffer=True)
        self._begin_sampling()

    def restart_after_fork(self) -> None:
        """Become a worker of one's own in a forked child."""
        self.identity = self.identity.without_place()
        self.is_guess = True  # it may call init and say who it is
        self._has_spoken = self._has_started = False
        self.failure = None
        GUARD.drops.reset()
        self.providers.gpus.forget()
        self.providers.gc_time.forget()
        self.providers.restart(_resource(self.identity), keep_buffer=False)
        if self._spans is not None:
            self._spans.restart_after_fork()
        self._exporter.restart_after_fork()

    def flush(self, timeout_s: float) -> bool:
        """See ``flush`` of the module."""
        return self._exporter.flush(timeout_s)

    def hurry(self) -> None:
        """Let the exporters send what was recorded, without waiting for them."""
        self._exporter.hurry()
        if self._spans is not None:
            self._spans.hurry()

    def shutdown(self, timeout_s: float, *, says_goodbye: bool = True) -> bool:
        """See ``shutdown`` of the module."""
        self._ends_silently = not says_goodbye
        self._note_failure(uncaught())
        self._stop_sampling()
        return self._exporter.shutdown(timeout_s)

    def shutdown_at_exit(self) -> bool:
        """``shutdown`` that does not hold up a process for an endpoint that does not exist.

        One that was named gets its full time even if it never listened, counted from the start of
        the session: a bridge may be starting too.
        """
        # Of a multiprocessing child: its finalizers run while what its target raised is on its way.
        self._note_failure(sys.exception() or uncaught())
        self._stop_sampling()
        unreached_s = UNREACHED_EXIT_TIMEOUT_S
        if self.settings.metrics.is_named:
            unreached_s = max(unreached_s, self._started_s + EXIT_TIMEOUT_S - monotonic())
        return self._exporter.shutdown(EXIT_TIMEOUT_S, unreached_s)

    @property
    def _is_worker(self) -> bool:
        # A forked data loader, or whatever else a launcher starts, is no worker unless it says so.
        return self._has_spoken or not self.is_guess

    def _collect(self) -> list[Request]:
        if self.settings.traces.enabled:
            with GUARD:
                show_open_spans(self.providers.tracer, monotonic_ns())
        measured: list[Request] = []
        if self.settings.metrics.enabled:
            measured = self.providers.meter.collect_with_heartbeat()
        else:
            self.providers.meter.buffer.clear()
        said = self.providers.events.take_all()
        self._has_spoken = self._has_spoken or bool(measured or said)
        if self._is_worker and not self._has_started:
            self.say_start({})
            self._begin_sampling()
            said = self.providers.events.take_all() + said
        if not self.settings.logs.enabled:
            return measured
        before, after = map(self.providers.events.requests, around(said))
        return [*before, *measured, *after]

    def _begin_sampling(self) -> None:
        self.providers.gc_time.start()
        if self.settings.metrics.enabled and not self._is_ending:
            self.providers.gpus.start(self.settings.gpu, self.identity.role)

    def _stop_sampling(self) -> None:
        self._is_ending = True  # the last collection may be the first in which the worker speaks
        self.providers.gpus.stop()

    def _heartbeat(self) -> Request | None:
        is_heard = self._is_worker and self.settings.metrics.enabled
        return self.providers.meter.heartbeat() if is_heard else None

    def _greeting(self) -> list[Request]:
        said = self.providers.events.take_all() if self.settings.logs.enabled else []
        return self.providers.events.requests(said)

    def _goodbye(self) -> Request | None:
        if self._ends_silently or not self._is_worker or not self.settings.logs.enabled:
            return None
        said: dict[str, str] = {RL_WORKER_STATUS: RlWorkerStatusValues.COMPLETE}
        if self.failure is not None:
            said = {RL_WORKER_STATUS: RlWorkerStatusValues.FAILED, ERROR_TYPE: self.failure}
        return self.providers.events.goodbye(said)

    def _note_failure(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, SystemExit):
            self.failure = type_name(error)

    def _flush_spans(self, timeout_s: float) -> None:
        if self._spans is not None:
            self._spans.flush(timeout_s)

    def _close(self) -> None:
        if self.providers.meter.reader is self:
            self.providers.meter.reader = None
        if self._spans is not None:
            self._spans.close()


class _Providers:
    """What user code holds on to for the life of the process, over any number of sessions."""

    def __init__(self, resource: Resource, settings: Settings) -> None:
        self.meter = BufferedMeterProvider(resource, GUARD)
        meter = self.meter.get_meter(SCOPE_NAME, __version__)
        show_phases(meter, GUARD)
        self.gc_time = GcTime(meter)
        self.gpus = GpuSampler(meter, GUARD)
        self.events = Events(resource)
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
        self.tracer.change_resource(resource)
        self.events.bind(resource)
        if not keep_buffer:
            self.events.forget()

    def install(self) -> None:
        """Make these the global providers, unless the program has its own."""
        _install_meter_provider(self.meter)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self.tracer)


# _lock guards the three below. Re-entrant: asking the API for the global provider may load
# the plug-in, which asks for the session.
_lock = threading.RLock()
_session: Session | None = None
_has_ended = False  # whoever has said shutdown gets no other worker than one that init names
_providers: _Providers | None = None


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
) -> None:
    """Start reporting as a worker of an experiment. Raises here or never again.

    Sets the global OpenTelemetry providers unless the program has set its own. Call it once per
    process; a second call with the same arguments does nothing.

    Args:
        experiment: Groups all workers of a run; default ``OTEL_RL_EXPERIMENT``.
        role: trainer, generator, replay_buffer, env, reward, or any word; default ``OTEL_RL_ROLE``.
        trial: One attempt at the experiment; default ``OTEL_RL_TRIAL``, else ``default``.
        index: Place among the workers of the role, from 0; default what the launcher says.
        count: Number of workers of the role; default what the launcher says.
        tag: ``training`` or ``evaluation``, or any word.
        endpoint: Base URL of the bridge or collector; default ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        export_interval_s: Seconds; default ``OTEL_METRIC_EXPORT_INTERVAL``, else 1.
        resource_attributes: Further attributes of the process.
        config: Hyper-parameters of the run. See ``log_config``.
        notes: Prose about the run.
        tags: Words to find the run by, together with those of the other workers.
        group: A name that several runs share.
        job_type: What kind of run it is within its group.
        gpu: Whether the process's GPUs are sampled, or how, e.g. ``{"roles": ["trainer"]}``;
            default ``OTEL_RL_GPU``, else not.

    Raises:
        ConfigError: An argument or variable is wrong, or the process reports as another worker
            already. The message names it, its value and the way out.
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
        os.environ, endpoint=endpoint, export_interval_s=export_interval_s, gpu=gpu
    )
    _check_files(settings)
    said = what_is_said(
        GUARD, config=config, notes=notes, tags=tags, group=group, job_type=job_type
    )
    with _lock:
        if _session is None:
            _start(identity, settings, is_guess=False, said=said)
        elif _session.is_guess:
            _replace_guess(_session, identity, settings, said)
        elif _session.identity != identity or _session.settings != settings:
            raise ConfigError(
                f"init: this process already reports as {_describe(_session.identity)} to "
                f"{redacted(_session.settings.metrics.url)} (got {_describe(identity)} to "
                f"{redacted(settings.metrics.url)}).",
                hint="Call otel_rl.shutdown() first, or call init() once.",
            )
        elif said:
            _session.say_start(said)
        if not settings.disabled and _providers is not None:
            with GUARD:
                _providers.install()


def flush(*, timeout_s: float = EXIT_TIMEOUT_S) -> bool:
    """Send everything recorded before the call. Never raises.

    Args:
        timeout_s: The longest the call blocks.

    Returns:
        True if the endpoint has taken it; False on timeout or before ``init``.
    """
    session = _session
    return session.flush(timeout_s) if session is not None else False


def shutdown(*, timeout_s: float = EXIT_TIMEOUT_S) -> bool:
    """Send everything and stop reporting. Runs by itself at exit. Idempotent, never raises.

    Args:
        timeout_s: The longest the call blocks.

    Returns:
        True if everything was delivered. What was not is counted and logged.
    """
    session = _ended_session()
    return session.shutdown(timeout_s) if session is not None else True


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
    """The session, which is none from now on."""
    global _session, _has_ended  # one session per process
    with _lock:
        session, _session = _session, None
        _has_ended = _has_ended or session is not None
    return session


def running() -> Session | None:
    """The session, or None before ``init`` and after ``shutdown``."""
    return _session


def implicit_session() -> Session | None:
    """The session, started from the environment alone if there was none yet.

    Returns:
        None if ``OTEL_SDK_DISABLED`` is set, or after ``shutdown``.

    Raises:
        ConfigError: The environment does not say which experiment this is, or is wrong.
    """
    with _lock:
        if _session is not None or _has_ended:
            return _session
        settings = read_settings(os.environ)
        _check_files(settings)
        identity = identify(os.environ, default_role=DEFAULT_ROLE, process_name=process_name())
        return _start(identity, settings, is_guess=True)


def install_from_environment() -> None:
    """``implicit_session`` with its providers as the program's, unless it has set its own.

    Raises:
        ConfigError: See ``implicit_session``.
    """
    with _lock:
        if implicit_session() is not None and _providers is not None:
            _providers.install()


def start_from_environment() -> Session | None:
    """``implicit_session`` for what is called in a training loop: never raises.

    Returns:
        None, too, if no experiment is in ``OTEL_RL_EXPERIMENT``.
    """
    if is_disabled() or not os.environ.get("OTEL_RL_EXPERIMENT"):
        return None
    try:
        return implicit_session()
    except Exception as error:  # noqa: BLE001  # nothing may raise into training code
        GUARD.warn("bad_environment", f"otel_rl cannot start: {error}")
        return None


def started_or_dropped(call: str, lost: int = 1) -> Session | None:
    """The session, started from the environment if need be. Never raises.

    Args:
        call: What the program has called.
        lost: How much of it is lost, and counted, if there is no session.
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
    """Whether ``OTEL_SDK_DISABLED`` is set."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _replace_guess(guess: Session, identity: Identity, settings: Settings, said: Said) -> None:
    """Go on as the worker that ``init`` names. The caller holds the lock."""
    if guess.settings == settings:
        guess.correct(identity)
        guess.say_start(said)
    else:
        ended = _ended_session()
        if ended is not None:
            ended.shutdown(_CHANGE_TIMEOUT_S, says_goodbye=False)
        _start(identity, settings, is_guess=False, said=said)


def _start(
    identity: Identity, settings: Settings, *, is_guess: bool, said: Said | None = None
) -> Session | None:
    """Start the session. The caller holds the lock."""
    global _session, _providers, _has_ended  # one session per process
    if settings.disabled:
        return None
    for line in exporters_beside_otlp(os.environ):
        GUARD.warn(line, f"{line}.")
    if identity.index is None and (place := place_that_is_none(os.environ)) is not None:
        GUARD.warn(
            "place",
            f"{place} is no place among workers, so this one has no index of its own and the "
            "bridge numbers it. Set OTEL_RL_INDEX and OTEL_RL_COUNT, or correct them.",
        )
    if _providers is None:
        _providers = _Providers(_resource(identity), settings)
        # After the providers: the SDK registers its own fork handlers, and ours must run later.
        os.register_at_fork(after_in_child=_after_fork_in_child)
        atexit.register(_shutdown_at_exit)
    else:
        _providers.restart(_resource(identity), keep_buffer=True)
    _session = Session(identity, settings, _providers, is_guess=is_guess, said=said)
    _has_ended = False
    with GUARD:
        watch_calls(_hurry, GUARD)
    _flush_at_end_of_multiprocessing_child(_session)
    multiprocessing_util.register_after_fork(_session, _flush_at_end_of_multiprocessing_child)
    return _session


def _after_fork_in_child() -> None:
    global _lock  # the parent's may be held by a thread that is not here
    _lock = threading.RLock()
    if _session is not None and _providers is not None:
        with GUARD:
            _session.restart_after_fork()


def _flush_at_end_of_multiprocessing_child(_session_of_parent: Session) -> None:
    """Such a child ends with ``os._exit``, which skips atexit but runs these finalizers.

    The low priority puts it after the finalizers of user code, which may still record.
    """
    multiprocessing_util.Finalize(None, _shutdown_at_exit, exitpriority=-100)


def _resource(identity: Identity) -> Resource:
    """The identity in this process. ``OTEL_RESOURCE_ATTRIBUTES`` fills in what it does not say."""
    attributes = identity.attributes()
    # The SDK's own detector, because its tracers take the same id after a fork.
    attributes.update(ServiceInstanceIdResourceDetector().detect().attributes)
    attributes |= {
        "process.pid": os.getpid(),
        "telemetry.distro.name": "otel_rl",
        "telemetry.distro.version": __version__,
    }
    found = Resource.create(attributes)
    # A place and a tag are the identity's to say: a forked child has none, whatever is inherited.
    kept = {
        key: value
        for key, value in found.attributes.items()
        if key in attributes or key not in (RL_WORKER_INDEX, RL_WORKER_COUNT, RL_WORKER_TAG)
    }
    return Resource({"host.name": socket.gethostname(), **kept}, found.schema_url)


def _install_meter_provider(provider: BufferedMeterProvider) -> None:
    # The API has no question "did anybody set one?", but its own placeholders live in its module.
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
