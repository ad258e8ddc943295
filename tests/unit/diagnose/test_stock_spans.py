"""Programs of a stock SDK: only the spans of their loop tell a step, in requests to a bridge."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, Span, set_span_in_context

from exams.first.intake import Intake
from exams.first.requests import Arrived
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind, Verdict
from otel_rl.records import Signal

S = 1_000_000_000
AT, STEPS, EXPORTED = 30, 60, 4
Factor = Callable[[str, int], float]
"""By worker or part, and step."""


def _attributes(phase: str, step: int | None) -> dict[str, int | str]:
    of_phase = {"rl.phase": phase} if phase else {}
    return {**of_phase, **({} if step is None else {"rl.loop.iteration": step})}


class Process:
    """A worker with a tracer of its own."""

    def __init__(self, role: str, index: int) -> None:
        self._spans = InMemorySpanExporter()
        provider = TracerProvider(
            resource=Resource(
                {
                    "service.name": role,
                    "service.instance.id": f"{role}-{index}",
                    "rl.experiment.name": "e",
                    "rl.worker.role": role,
                    "rl.worker.index": index,
                    "host.name": "box",
                }
            )
        )
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._tracer = provider.get_tracer("program")

    def span(
        self,
        name: str,
        begun_s: float,
        ended_s: float,
        *,
        within: Span | None = None,
        links: Sequence[Span] = (),
        phase: str = "",
        step: int | None = None,
    ) -> Span:
        """Begin a span, and end it unless others are to be within it."""
        span = self._tracer.start_span(
            name,
            context=None if within is None else set_span_in_context(within),
            links=[Link(one.get_span_context()) for one in links],
            attributes=_attributes(phase, step),
            start_time=int(begun_s * S),
        )
        if name not in {"rl.loop", "train_iteration"}:
            span.end(int(ended_s * S))
        return span

    def taken(self) -> Sequence[ReadableSpan]:
        found = self._spans.get_finished_spans()
        self._spans.clear()
        return found


class Program:
    """Generators, then trainers that reduce together, save now and then, and push weights."""

    def __init__(self, factor: Factor, *, loop: str = "rl.loop", leads: int | None = None) -> None:
        self._factor, self._loop, self._leads = factor, loop, leads
        self._chance = random.Random(1)
        self.makers = [Process("generator", index) for index in range(3)]
        self._trainers = [Process("trainer", index) for index in range(2)]

    def history(self, *, dead: Process | None = None, after_s: float = 0.0) -> RunHistory:
        """The history at a bridge; each process exports every few steps, not all at once.

        A dead one exports nothing from a step on; all are silent for a while after the last step.
        """
        intake, now_s = Intake(), 1_000_000.0
        for step in range(STEPS):
            now_s = self._step(step, now_s)
            bodies = [
                encode_spans(process.taken()).SerializeToString()
                for number, process in enumerate([*self.makers, *self._trainers])
                if (step + number) % EXPORTED == 0 or step == STEPS - 1
                if process is not dead or step < AT
            ]
            at_ns = int((now_s + 0.05) * S)
            intake.take(at_ns, [Arrived(at_ns, Signal.TRACES, body) for body in bodies])
        assert not intake.refused
        intake.go_on(int((now_s + after_s) * S))
        return RunHistory(intake.records)

    def _took_s(self, usual_s: float, part: str, step: int) -> float:
        return usual_s * math.exp(self._chance.gauss(0, 0.03)) * self._factor(part, step)

    def _step(self, step: int, begun_s: float) -> float:
        ahead = None if self._leads is None else step + self._leads
        made, made_s = [], begun_s
        for index, maker in enumerate(self.makers):
            end_s = begun_s + self._took_s(0.3, f"generator/{index}", step)
            made.append(maker.span("generate", begun_s, end_s, phase="generate", step=ahead))
            made_s = max(made_s, end_s)
        trained_s = [made_s + self._took_s(0.4, f"trainer/{rank}", step) for rank in range(2)]
        saved_s = max(trained_s) + (self._took_s(0.2, "checkpoint", step) if step % 5 == 0 else 0)
        end_s = saved_s + self._took_s(0.1, "sync", step)
        for rank, trainer in enumerate(self._trainers):
            loop = trainer.span(self._loop, begun_s, end_s, links=made, step=step)
            trainer.span("collector_wait", begun_s, made_s, within=loop, phase="collector_wait")
            trainer.span("train", made_s, trained_s[rank], within=loop, phase="train")
            trainer.span("all_reduce", trained_s[rank], max(trained_s), within=loop)
            if step % 5 == 0:
                trainer.span("checkpoint", max(trained_s), saved_s, within=loop)
            trainer.span("weight_push", saved_s, end_s, within=loop, phase="weight_push")
            loop.end(int(end_s * S))
        for maker in self.makers:
            maker.span("weight_pull", saved_s, end_s, phase="weight_pull")
        return end_s + 0.02


def from_on(part: str, by: float, at: int = AT) -> Factor:
    return lambda of, step: by if of.startswith(part) and step >= at else 1.0


def only_cause(program: Program) -> Cause:
    (cause,) = diagnose(program.history()).causes
    return cause


@pytest.mark.parametrize(
    "program",
    [
        Program(from_on("trainer/1", 2.2)),
        Program(from_on("trainer/1", 2.2), loop="train_iteration"),
        Program(from_on("trainer/1", 2.2), leads=3),
    ],
    ids=["loop", "a loop of another name", "generators that lead the steps"],
)
def test_a_slow_rank_is_named_and_not_who_waits_for_it(program: Program) -> None:
    cause = only_cause(program)
    assert (cause.kind, cause.worker, cause.phase) == (Kind.STRAGGLER, "trainer/1", "train")
    assert cause.since == pytest.approx(AT, abs=EXPORTED)


def test_one_slow_transfer_is_listed_once() -> None:
    cause = only_cause(Program(from_on("sync", 4.0)))
    assert cause.kind is Kind.SLOW_SYNC
    assert cause.since == pytest.approx(AT, abs=EXPORTED)


def test_a_slow_checkpoint_is_no_slow_training() -> None:
    history = Program(from_on("checkpoint", 12.0, 35)).history()
    (cause,) = diagnose(history).causes
    assert (cause.kind, cause.phase) == (Kind.SLOW_PHASE, "checkpoint")
    (cause,) = diagnose(history, (40, 40)).causes
    assert (cause.kind, cause.phase) == (Kind.SLOW_PHASE, "checkpoint")


def test_most_of_the_time_of_a_step_is_that_since_generation_is_slow() -> None:
    report = diagnose(Program(from_on("generator", 4.0, 45)).history())
    assert report.causes[0].kind is Kind.SLOW_GENERATION
    assert report.bound is not None
    assert report.bound[:2] == ("generator", "generate")


def test_a_program_without_trouble_has_none() -> None:
    assert not diagnose(Program(lambda part, step: 1.0).history()).causes


@pytest.mark.parametrize("loop", ["rl.loop", "train_iteration"])
def test_steps_are_told_when_their_spans_come_and_not_with_their_critical_paths(loop: str) -> None:
    history = Program(lambda part, step: 1.0, loop=loop).history()
    rhythm = Rhythm.of(history)
    assert rhythm is not None
    assert rhythm.steps == STEPS
    assert rhythm.usual_s == pytest.approx(1.0, rel=0.2)
    assert rhythm.longest_s < EXPORTED


def test_a_process_that_sends_no_more_spans_is_named_and_may_have_ended_in_order() -> None:
    program = Program(lambda part, step: 1.0)
    (cause,) = diagnose(program.history(dead=program.makers[1])).causes
    assert (cause.kind, cause.worker) == (Kind.CRASH, "generator/1")
    assert cause.since == pytest.approx(AT, abs=EXPORTED)
    assert "killed, stopped in order, frozen or cut off" in cause.words


def test_a_silent_end_of_all_is_not_healthy() -> None:
    report = diagnose(Program(lambda part, step: 1.0).history(after_s=60))
    assert (report.verdict, [*report.causes]) == (Verdict.CANNOT_TELL, [])
    assert report.doubts == ["all workers fell silent at once: their SDK reports no end of a run"]


def test_each_span_has_the_step_of_the_one_around_it() -> None:
    history = Program(lambda part, step: 1.0).history()
    steps: dict[str, set[int]] = defaultdict(set)
    for place, tracks in history.spans.items():
        for track in tracks.values():
            steps[place.phase] |= {*track.steps}
    assert steps["train"] == steps["all_reduce"] == {*range(STEPS)}
