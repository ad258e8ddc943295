"""Measures the exclusive time of steps and phases.

A phase in the control flow (thread or asyncio task) of its step counts in the step. A phase in
another flow runs beside the step: it takes no time from the step's phases, and is measured
separately.

Spans have exactly the measured times, to the nanosecond. Times on a device are known later; only
otel_rl's own export gets them. The timeline's times are converted to the wall clock once, when the
outermost block begins, so that a clock change neither stretches nor overlaps the spans.
"""

import inspect
import os
import traceback
from collections.abc import Callable, Iterable
from functools import lru_cache, partial, wraps
from time import time_ns
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar, cast

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import _Gauge as Gauge
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import (
    METRICS,
    PHASES,
    RL_GPU_OWNER,
    RL_ITERATION_DURATION,
    RL_LOOP_ITERATION,
    RL_PHASE,
    RL_PHASE_CLASS,
    RL_PHASE_DURATION,
    RL_POLICY_VERSION,
    RL_TRAIN_MFU,
    RlPhaseValues,
)
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.version import __version__
from otel_rl.worker import served_policy, session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import masked_message
from otel_rl.worker.events.queue import mark_step
from otel_rl.worker.metrics.gauges import MAX_NAME_LENGTH
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.otlp.anyvalue import label, text_of
from otel_rl.worker.phases import UNACCOUNTED, WHOLES, device_clock, flows
from otel_rl.worker.phases.device_clock import DeviceSeconds, SpanTimes
from otel_rl.worker.phases.flows import span_name
from otel_rl.worker.phases.timeline import (
    MAX_DEPTH,
    MAX_PHASES,
    Frame,
    InnerStep,
    StepFrame,
    Timeline,
)
from otel_rl.worker.rollouts import CURRENT
from otel_rl.worker.settings import is_disabled
from otel_rl.worker.step_context import in_step, out_of_steps
from otel_rl.worker.tensors import Deferred, as_step, is_cuda_in_use

SCOPE_NAME: Final = "otel_rl.phases"
"""Scope of the spans, and of the measurements beside them."""

_GENERATE: Final = RlPhaseValues.GENERATE.value

_CLASSES: Final = {str(name): str(spec.phase_class) for name, spec in PHASES.items()}
"""Plain text, so that a span processor of the program receives no type of otel_rl."""

_MAX_LABEL_CHARS: Final = 64
"""Of the name of a phase in the metrics of GPUs."""

P = ParamSpec("P")
R = TypeVar("R")

_TOO_DEEP: Final = (
    f"More than {MAX_DEPTH} steps and phases are nested; the innermost are not measured. Use them "
    "in with statements, or close them."
)

_TOO_MANY: Final = (
    f"The steps have more than {MAX_PHASES} different phases; further ones are not measured. "
    "Phase names should not contain ids or numbers."
)


class _Block:
    """A ``with`` or ``async with`` block that never raises. Reentrant."""

    __slots__ = ("__weakref__",)

    def __enter__(self) -> Self:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            flow = flows.current()
            frame = flow.close(self)
            if frame is None:
                # A generator closed by another thread or task; or a frame of the parent, after a
                # fork.
                elsewhere = flows.abandon_elsewhere(self)
                if elsewhere is None:
                    return
                flow, frame = elsewhere
            if isinstance(frame, StepFrame | InnerStep):
                # Times of measurements in it may be beyond those of a clock that was set back.
                frame.scope.ended_ns = max(time_ns(), frame.ended_ns + flow.wall_ns)
            if error is not None and isinstance(frame, StepFrame):
                mark_step(error, frame.number)
                current = session.running()
                if current is not None:
                    current.exit_report.error(error)
            try:
                current = session.running()
                if frame.has_gpus and current is not None:
                    current.providers.gpus.end_turn(frame)
                if frame.step is None:
                    self._report(flow, frame)
            finally:
                if frame.token is not None or frame.span is not None:
                    end_span(flow, frame, error)
                rollout = CURRENT.get()
                if rollout is not None:
                    rollout.moved(flows.innermost())
        except Exception as failure:  # noqa: BLE001  # nothing may raise into training code
            session.GUARD.caught(failure)

    def _report(self, flow: Timeline, frame: Frame) -> None:
        raise NotImplementedError


class step(_Block):  # noqa: N801  # reads as a statement: with step(12)
    """Training step, as a ``with`` or ``async with`` block. Never raises, never waits.

    At its end the block reports ``rl.iteration.duration``, and the exclusive ``rl.phase.duration``
    of each phase, summed over its entries. Time in no phase is ``unaccounted``, so that the phases
    add up to the iteration. A phase from an earlier step of this thread or task is 0 if it does not
    occur.
    Values that are logged or recorded in the block, and in the threads and tasks that have its
    context, are at the step; ``step=`` at a call wins. What counters and histograms of the process
    count meanwhile is in the step's row. The block is a span, ``rl.loop``.

    Args:
        number: The training step, any integer.
        phases: Phases that are reported from the first step on, as 0 until they occur. Name those
            that occur only on several devices, so that one device reports the same phases.
    """

    __slots__ = ("_phases", "number")

    def __init__(self, number: int, *, phases: Iterable[str] = ()) -> None:
        self._phases = (phases,) if isinstance(phases, str) else phases
        self.number = number
        """The training step."""

    def __enter__(self) -> Self:
        try:
            number = as_step(self.number)
            if number is None:
                session.GUARD.drop(
                    DropReason.BAD_STEP,
                    "otel_rl.step: the number must be an integer of 64 bits (got "
                    f"{str(self.number)[:80]!r}). The step is not measured.",
                )
                return self
            found = tracer()
            flow = flows.current()
            frame = flow.open_step(self, number)
            if frame is None:
                session.GUARD.drop(DropReason.UNCLOSED_PHASE, _TOO_DEEP)
                return self
            if isinstance(frame, InnerStep):
                session.GUARD.warn(
                    "step_within_a_step",
                    "A step was opened within a step, and its time is a part of the outer one. "
                    "Close each step before the next one; otel_rl.phase() measures parts of it.",
                )
                frame.token = attach(in_step(get_current(), frame.scope))
                return self
            current = session.running()
            flow.report_to(current)
            if current is not None:
                if current.settings.times_devices and is_cuda_in_use():
                    _mark(flow, frame)
                frame.end_counts = current.providers.meter.steps.open(
                    frame.scope, frame.begun_ns + flow.wall_ns, self
                )
            if self._phases and not flow.report(filter(_is_name, self._phases)):
                session.GUARD.drop(DropReason.TOO_MANY_PHASES, _TOO_MANY)
            begin_step_span(found, flow, frame)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            session.GUARD.caught(error)
        return self

    def _report(self, flow: Timeline, frame: Frame) -> None:
        if not isinstance(frame, StepFrame):
            return
        tokens = None
        if frame.end_counts is not None:
            tokens = frame.end_counts(frame.ended_ns + flow.wall_ns)
        if frame.is_abandoned:
            session.GUARD.drop(
                DropReason.UNCLOSED_PHASE,
                f"Step {frame.number} was opened and closed by different threads or tasks, "
                "and is not measured.",
            )
            return
        current = _session(len(frame.durations_ns) + 1)
        if current is None:
            return
        number = frame.number
        for name, phase_class in flow.reported:
            _record_phase(current, name, _seconds(frame, name), phase_class, number)
        _record_phase(current, UNACCOUNTED, _seconds(frame, UNACCOUNTED), None, number)
        at_step = {RL_LOOP_ITERATION: number}
        _record(current, RL_ITERATION_DURATION, _seconds(frame, None), at_step)
        if tokens is not None and current.settings.mfu.is_known:
            mfu = _seconds(frame, None, partial(current.settings.mfu.utilization, tokens))
            if mfu is not None:
                _record(current, RL_TRAIN_MFU, mfu, at_step)


def _mark(flow: Timeline, step: StepFrame) -> None:
    """Measure a step, and the phases that it will have, on the device."""
    if flow.clock is None or not flow.clock.is_of_present_device:
        flow.clock = device_clock.DeviceClock(session.GUARD)
    step.marks = device_clock.StepMarks(flow.clock, step.begun_ns)
    step.begun = step.marks.last


def _seconds(
    step: StepFrame,
    phase: str | None,
    convert: Callable[[float], float | None] = float,
) -> float | Deferred | None:
    """Return the duration of an ended step, or of a phase of it, converted."""
    if step.marks is not None and step.marks.is_known:
        return DeviceSeconds(step.marks, phase, convert)
    if phase is not None:
        return convert(step.durations_ns.get(phase, 0) / 1e9)
    return convert((step.ended_ns - step.begun_ns) / 1e9)


class phase(_Block):  # noqa: N801  # reads as a statement: with phase("train")
    """Part of a step, as a ``with`` or ``async with`` block or as decorator. Never raises.

    The time is exclusive: nested phases are subtracted. Outside a step, it is reported at each end
    of the phase. Reentrant, in any thread or task.

    Args:
        name: A value of ``rl.phase``, or any text; each name is a series of its own.
        phase_class: Class of the phase's time, for a phase that is not in the registry.
        span: Whether to record a span for each entry, too, at ten times the cost.
        gpu: Whether the phase uses the GPUs of this process, which several phases share. Its time
            is recorded; with GPU sampling, utilization, energy and memory of each device are
            divided between such phases. Of nested ones the innermost counts.
    """

    __slots__ = ("_gpu", "_name", "_phase_class", "_span")

    def __init__(
        self, name: str, *, phase_class: str | None = None, span: bool = True, gpu: bool = False
    ) -> None:
        self._name = name
        self._gpu = gpu
        # Converts a StrEnum: span processors receive plain text.
        self._phase_class = None if phase_class is None else str(phase_class)
        self._span = span

    def __enter__(self) -> Self:
        try:
            if not _is_name(self._name):
                return self
            flow = flows.current()
            frame = flow.open_phase(self, self._name, self._phase_class)
            if frame is None:
                session.GUARD.drop(DropReason.UNCLOSED_PHASE, _TOO_DEEP)
                return self
            if frame.name != self._name:
                session.GUARD.drop(DropReason.TOO_MANY_PHASES, _TOO_MANY)
                return self
            if self._gpu:
                current = session.running() or session.start_from_environment()
                if current is not None:
                    frame.has_gpus = True
                    current.providers.gpus.begin_turn(frame, label(self._name, _MAX_LABEL_CHARS))
            if self._span:
                found = tracer()
                if found is not None:
                    begin_phase_span(found, flow, frame, self._phase_class)
            rollout = CURRENT.get()
            if rollout is not None:
                rollout.moved(self._name, frame.span)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            session.GUARD.caught(error)
        return self

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, also an ``async`` one: each call is the phase.

        A generator runs whenever its consumer asks for an item, so a decorated generator is not
        measured: use the phase within its body.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            session.GUARD.warn(
                "decorated_generator",
                f"The phase {str(self._name)[:80]!r} decorates a generator, and is not measured. "
                "Use the phase in a with statement around the work between two yields.",
            )
            return cast("Callable[P, R]", function)
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> object:
                with self._again():
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", call_async)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._again():
                return function(*args, **kwargs)

        return call

    def _again(self) -> "phase":
        return phase(self._name, phase_class=self._phase_class, span=self._span, gpu=self._gpu)

    def _report(self, flow: Timeline, frame: Frame) -> None:
        current = _session(1)
        if current is None:
            return
        _record_phase(current, frame.name, frame.charged_ns / 1e9, self._phase_class)
        whole = WHOLES.get(frame.name)
        if whole is not None and not flow.credit(whole, frame.charged_ns):
            _record_phase(current, whole, frame.charged_ns / 1e9)


def _is_name(name: object) -> bool:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH:
        return True
    session.GUARD.drop(
        DropReason.BAD_NAME,
        f"otel_rl.phase: a phase's name must be text of 1 to {MAX_NAME_LENGTH} characters "
        f"(got {str(name)[:80]!r}). It is not measured.",
    )
    return False


def _session(measurements: int) -> session.Session | None:
    """Return the session. Without one, count measurements that are lost."""
    current = session.running() or session.start_from_environment()
    if current is None and not is_disabled(os.environ):
        session.GUARD.drop(
            DropReason.NOT_STARTED,
            "A step or phase ended before otel_rl.init() or after otel_rl.finish(), and is "
            'not measured. Call otel_rl.init(experiment="...", role="...") first, or set '
            "OTEL_RL_EXPERIMENT.",
            measurements,
        )
    return current


def _record_phase(
    current: session.Session,
    name: str,
    duration_s: float | Deferred | None,
    phase_class: str | None = None,
    number: int | None = None,
) -> None:
    attributes: dict[str, str | int] = {RL_PHASE: name}
    if number is not None:
        attributes[RL_LOOP_ITERATION] = number
    if phase_class is not None:
        attributes[RL_PHASE_CLASS] = phase_class
    # One without a step runs beside the phases of the step, if any, which add up to it.
    around = out_of_steps() if number is None else None
    _record(current, RL_PHASE_DURATION, duration_s, attributes, around)


def _record(
    current: session.Session,
    metric: str,
    value: float | Deferred | None,
    attributes: Attributes,
    context: Context | None = None,
) -> None:
    gauge = _gauge(current.providers.meter, metric)
    # Ours take what a device computes later.
    gauge.set(value, attributes, context)  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def _gauge(provider: BufferedMeterProvider, metric: str) -> Gauge:
    spec, meter = METRICS[metric], provider.get_meter(SCOPE_NAME, __version__)
    return meter.create_gauge(metric, spec.unit, spec.brief)


_made: tuple[TracerProvider, Tracer] | None = None


def tracer() -> Tracer | None:
    """Return the tracer of the program's or the session's provider; None if spans are disabled."""
    global _made  # a cache: a provider makes a new tracer each time
    current = session.running() or session.start_from_environment()
    if current is None or not current.settings.traces.enabled:
        return None
    provider: TracerProvider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = current.providers.tracer
    made = _made
    if made is None or made[0] is not provider:
        made = _made = (provider, provider.get_tracer(SCOPE_NAME, __version__))
    return made[1]


def begin_step_span(found: Tracer | None, flow: Timeline, frame: StepFrame) -> None:
    """Make the step and, with a tracer, its span ``rl.loop`` the current ones.

    The span is a root, linked to the surrounding span: a training run in one trace would have
    millions of spans, which no viewer can show.
    """
    context = get_current()
    if found is not None:
        around = trace.get_current_span(context).get_span_context()
        frame.span = found.start_span(
            STEP_SPAN,
            Context(),
            attributes={RL_LOOP_ITERATION: frame.number},
            links=[Link(around)] if around.is_valid else None,
            start_time=frame.begun_ns + flow.wall_ns,
        )
        context = trace.set_span_in_context(frame.span, context)
    frame.token = attach(in_step(context, frame.scope))


def begin_phase_span(found: Tracer, flow: Timeline, frame: Frame, phase_class: str | None) -> None:
    """Begin the span of a phase within the current span, and make it the current one."""
    name = frame.name
    attributes: dict[str, str | int] = {RL_PHASE: name}
    if phase_class is None:
        phase_class = _CLASSES.get(name)
    if phase_class is not None:
        attributes[RL_PHASE_CLASS] = phase_class
    if frame.has_gpus:
        attributes[RL_GPU_OWNER] = name
    if frame.step is not None:
        attributes[RL_LOOP_ITERATION] = frame.step.number
    links = None
    if name == _GENERATE and (served := served_policy.served()) is not None:
        links = [Link(served.pull)] if served.pull.is_valid else None
        if served.version is not None:
            attributes[RL_POLICY_VERSION] = served.version
    frame.span = found.start_span(
        span_name(frame),
        attributes=attributes,
        links=links,
        start_time=frame.begun_ns + flow.wall_ns,
    )
    frame.token = attach(trace.set_span_in_context(frame.span))


def end_span(flow: Timeline, frame: Frame, error: BaseException | None) -> None:
    """End the span of a frame, if any, and restore the surrounding span and step."""
    if frame.token is not None and not frame.is_abandoned:
        detach(frame.token)
    span = frame.span
    if span is None:
        return
    ended_ns = frame.ended_ns + flow.wall_ns
    # As in OpenTelemetry, a BaseException that is no Exception, e.g. GeneratorExit, is no error.
    if isinstance(error, Exception) and span.is_recording():
        _record_error(span, error, ended_ns)
    begun, ended = frame.begun, frame.ended
    if begun is None or ended is None or frame.marks is None:
        span.end(ended_ns)
        return
    running = session.running()
    later = {} if running is None else running.providers.spans.device_times
    key = span.get_span_context().span_id
    later[key] = SpanTimes(frame.marks.clock, begun, ended, flow.wall_ns)
    span.end(ended_ns)
    later.pop(key, None)  # of a span that is not kept


def _record_error(span: Span, error: Exception, time_ns: int) -> None:
    """Record an exception as OpenTelemetry's SDK does, but without secrets."""
    message = masked_message(text_of(error))
    stacktrace = masked_message("".join(traceback.format_exception(error)))
    span.record_exception(
        error,
        {"exception.message": message, "exception.stacktrace": stacktrace},
        timestamp=time_ns,
    )
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {message}"))
