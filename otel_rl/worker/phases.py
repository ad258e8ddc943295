"""step() and phase(): where the time of training goes, exactly, and nothing twice.

A phase in the flow of control (thread or asyncio task) of its step is counted in the step. One in
another flow is beside it: it takes no time out of the step's phases, and is measured by itself.
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from opentelemetry.metrics import _Gauge as Gauge

from otel_rl import __version__
from otel_rl.semconv.instruments import create_rl_iteration_duration, create_rl_phase_duration
from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_PHASE, RL_PHASE_CLASS
from otel_rl.worker import flows, session, timeline
from otel_rl.worker.decorate import timed
from otel_rl.worker.drops import DropReason
from otel_rl.worker.expand import MAX_NAME_LENGTH
from otel_rl.worker.frames import UNACCOUNTED, WHOLES, Frame, StepFrame
from otel_rl.worker.phase_spans import (
    SCOPE_NAME,
    begin_phase_span,
    begin_step_span,
    end_span,
    tracer,
)
from otel_rl.worker.provider import BufferedMeterProvider
from otel_rl.worker.timeline import Refused, Timeline
from otel_rl.worker.values import as_step

__all__ = ["phase", "step"]

P = ParamSpec("P")
R = TypeVar("R")

_WHY: Final = {
    Refused.TOO_DEEP: (
        DropReason.UNCLOSED_PHASE,
        (
            f"More than {timeline.MAX_DEPTH} steps and phases are open within each other; those "
            "within are not measured. Use them in with statements, or close what was opened."
        ),
    ),
    Refused.TOO_MANY_PHASES: (
        DropReason.TOO_MANY_PHASES,
        (
            f"The steps have more than {timeline.MAX_PHASES} different phases; further ones are "
            "not measured. A phase's name should not hold an id or a number."
        ),
    ),
}


class _Block:
    """A ``with`` or ``async with`` block that never raises. May be entered within itself."""

    __slots__ = ("__weakref__",)

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            flow = flows.current()
            if flow.refused is not None and flow.ends_refused(self):
                return
            frame = flow.close(self)
            if frame is None:
                # Of a generator that another thread or task ends; or the parent's, after a fork.
                elsewhere = flows.abandon_elsewhere(self)
                if elsewhere is None:
                    return
                flow, frame = elsewhere
            try:
                if frame.step is None:
                    self._report(flow, frame)
            finally:
                if frame.span is not None:
                    end_span(flow, frame, error)
        except Exception as failure:  # noqa: BLE001  # nothing may raise into training code
            session.GUARD.caught(failure)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _report(self, flow: Timeline, frame: Frame) -> None:
        raise NotImplementedError

    def _refuse(self, flow: Timeline, why: Refused) -> None:
        flow.refuse(self)
        if why is Refused.WITHIN_A_STEP:
            session.GUARD.warn(
                "step_within_a_step",
                "A step was opened within a step, and is a part of the outer one. Close each step "
                "before the next one, and use otel_rl.phase() for what is within it.",
            )
        else:
            session.GUARD.drop(*_WHY[why])


class step(_Block):  # noqa: N801  # reads as a statement: with step(12)
    """One training step, for a ``with`` or ``async with`` block. Never raises, never waits.

    At its end it reports ``rl.iteration.duration``, and ``rl.phase.duration`` of each phase: its
    own time, of all times that it was entered. What was in no phase is ``unaccounted``, so that the
    phases add up to the iteration. A phase that an earlier step of this thread or task had is 0
    where it does not happen. The block is a span, ``rl.loop``.

    Args:
        number: The training step, any integer.
        phases: To be reported from the first step on, as 0 until they happen. Name those that only
            happen on several devices, and one device reports the same phases.
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
                flows.current().refuse(self)
                session.GUARD.drop(
                    DropReason.BAD_STEP,
                    "otel_rl.step: the number must be an integer of 64 bits (got "
                    f"{str(self.number)[:80]!r}). The step is not measured.",
                )
                return self
            found = tracer()
            flow = flows.current()
            frame = flow.open_step(self, number)
            if isinstance(frame, Refused):
                self._refuse(flow, frame)
                return self
            flow.report_as(session.running())
            if self._phases and not flow.report(filter(_is_name, self._phases)):
                session.GUARD.drop(*_WHY[Refused.TOO_MANY_PHASES])
            if found is not None:
                begin_step_span(found, flow, frame)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            session.GUARD.caught(error)
        return self

    def _report(self, flow: Timeline, frame: Frame) -> None:
        if not isinstance(frame, StepFrame):
            return
        if frame.is_abandoned:
            session.GUARD.drop(
                DropReason.UNCLOSED_PHASE,
                f"Step {frame.number} was closed by another thread or task than it was opened by, "
                "and is not measured.",
            )
            return
        durations_ns = frame.durations_ns
        gauges = _gauges(len(durations_ns) + 1)
        if gauges is None:
            return
        number = frame.number
        for name, phase_class in flow.phases.items():
            gauges.record_phase(name, durations_ns.get(name, 0), phase_class, number)
        gauges.record_phase(UNACCOUNTED, durations_ns[UNACCOUNTED], None, number)
        gauges.record_iteration(frame.ended_ns - frame.begun_ns, number)


class phase(_Block):  # noqa: N801  # reads as a statement: with phase("train")
    """A part of a step, for a ``with`` or ``async with`` block or as decorator. Never raises.

    Its time is its own: that of phases within it is theirs alone. Outside of a step it is reported
    each time that it ends. One object may be entered any number of times, by any thread or task.

    Args:
        name: A value of ``rl.phase``, or any text; each name is a series of its own.
        phase_class: What kind of time it is, for a phase that is not in the registry.
        span: Whether each time is a span, too, which costs ten times the rest.
    """

    __slots__ = ("_name", "_phase_class", "_span")

    def __init__(self, name: str, *, phase_class: str | None = None, span: bool = True) -> None:
        self._name = name
        # Of a StrEnum, too: what a span processor sees is plain text.
        self._phase_class = None if phase_class is None else str(phase_class)
        self._span = span

    def __enter__(self) -> Self:
        try:
            if not _is_name(self._name):
                flows.current().refuse(self)
                return self
            flow = flows.current()
            frame = flow.open_phase(self, self._name, self._phase_class)
            if isinstance(frame, Refused):
                self._refuse(flow, frame)
            elif self._span:
                found = tracer()
                if found is not None:
                    begin_phase_span(found, flow, frame, self._phase_class)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            session.GUARD.caught(error)
        return self

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, also an ``async`` one or a generator, whose calls are the phase.

        A generator is in the phase while it runs, not while it is suspended.
        """
        return timed(function, self._again)

    def _again(self) -> "phase":
        return phase(self._name, phase_class=self._phase_class, span=self._span)

    def _report(self, flow: Timeline, frame: Frame) -> None:
        gauges = _gauges(1)
        if gauges is None:
            return
        gauges.record_phase(frame.name, frame.charged_ns, self._phase_class)
        whole = WHOLES.get(frame.name)
        if whole is not None and not flow.credit(whole, frame.charged_ns):
            gauges.record_phase(whole, frame.charged_ns)


def _is_name(name: object) -> bool:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH:
        return True
    session.GUARD.drop(
        DropReason.BAD_NAME,
        f"otel_rl.phase: a phase's name must be text of 1 to {MAX_NAME_LENGTH} characters "
        f"(got {str(name)[:80]!r}). It is not measured.",
    )
    return False


class _Gauges:
    """The instruments of a provider."""

    __slots__ = ("_iteration", "_phase", "provider")

    def __init__(self, provider: BufferedMeterProvider) -> None:
        meter = provider.get_meter(SCOPE_NAME, __version__)
        self.provider = provider
        self._phase: Gauge = create_rl_phase_duration(meter)
        self._iteration: Gauge = create_rl_iteration_duration(meter)

    def record_phase(
        self,
        name: str,
        duration_ns: int,
        phase_class: str | None = None,
        number: int | None = None,
    ) -> None:
        attributes: dict[str, str | int] = {RL_PHASE: name}
        if number is not None:
            attributes[RL_LOOP_ITERATION] = number
        if phase_class is not None:
            attributes[RL_PHASE_CLASS] = phase_class
        self._phase.set(duration_ns / 1e9, attributes)

    def record_iteration(self, duration_ns: int, number: int) -> None:
        self._iteration.set(duration_ns / 1e9, {RL_LOOP_ITERATION: number})


_made: _Gauges | None = None


def _gauges(measurements: int) -> _Gauges | None:
    """What to report with. None, and so many drops, if nobody has said who the worker is."""
    global _made  # a cache: there is one provider in a process
    current = session.running() or session.start_from_environment()
    if current is None:
        if not session.is_disabled():
            session.GUARD.drop(
                DropReason.NOT_STARTED,
                "A step or phase ended before otel_rl.init() or after otel_rl.shutdown(), and is "
                'not measured. Call otel_rl.init(experiment="...", role="...") first, or set '
                "OTEL_RL_EXPERIMENT.",
                measurements,
            )
        return None
    if _made is None or _made.provider is not current.providers.meter:
        _made = _Gauges(current.providers.meter)
    return _made
