"""Costs of spans for the demo at full sampling.

The demo runs with every span kept, against a receiver that counts. The cost of a span is measured
in steps that look like a trainer's, phases and links, with and without their spans, and in a loop
of spans by the plain API: CPU of the thread that makes them, which lengthens a step, and CPU of the
process, encoding and sending included. Beside that, runs of the demo with and without spans take
turns.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import otel_rl
from bench.figures import Figure, Limits
from bench.sink import sink
from bench.stock import stock_tracing
from otel_rl import lineage
from otel_rl.semconv import names
from otel_rl.worker import session
from otel_rl.worker.api.phases import SCOPE_NAME as PHASES_SCOPE
from tests.support.otlp_sink import Sink, pairs, serve

GOAL_PERCENT = 1.0
STEP_US = 1e6
"""Length of the step that the goal is a share of. The demo's steps are shorter than real ones."""

STEPS = 40
ROUNDS = 3
WITHOUT = {"OTEL_TRACES_EXPORTER": "none"}

PHASES = 10
LINKS = 24
COST_STEPS = 2000
COST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class _Spans:
    """Number of spans of either kind that a process makes in a step.

    Attributes:
        phases: Of steps and phases.
        others: By the plain API.
    """

    phases: float
    others: float

    @property
    def all(self) -> float:
        return self.phases + self.others


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the demo.

    Attributes:
        step_s: Of a rank, the median.
        spans: Spans per step of each process, by its role and process id.
        cpu_s: Of all processes, a step.
    """

    step_s: float
    spans: Mapping[str, _Spans]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _Cost:
    """CPU of the thread that makes spans, and of its whole process."""

    own_us: float
    all_us: float

    def less(self, other: "_Cost") -> "_Cost":
        return _Cost(self.own_us - other.own_us, self.all_us - other.all_us)

    def by(self, n: int) -> "_Cost":
        return _Cost(self.own_us / n, self.all_us / n)


@dataclass(frozen=True, slots=True)
class _Costs:
    phase: _Cost
    span: _Cost
    stock: _Cost
    link: _Cost

    def own_us(self, spans: "_Spans", links: int) -> float:
        """Return the CPU of the threads that make them."""
        return (
            spans.phases * self.phase.own_us + spans.others * self.span.own_us
        ) + links * self.link.own_us

    def all_us(self, spans: "_Spans", links: int) -> float:
        """Return the CPU with their export."""
        return (
            spans.phases * self.phase.all_us + spans.others * self.span.all_us
        ) + links * self.link.all_us


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield the share of a step for the busiest process of each role, and side by side."""
    steps, rounds = (4, 1) if tiny else (STEPS, ROUNDS)
    costs = _costs(20 if tiny else COST_STEPS, 1 if tiny else COST_ROUNDS)
    stock = costs.stock
    for name, cost, beside in (
        ("a phase", costs.phase, None),
        ("a span by the API", costs.span, stock),
        ("a link", costs.link, None),
    ):
        for what, ours_us, theirs_us in (
            ("in the thread that makes it", cost.own_us, beside.own_us if beside else None),
            ("sent", cost.all_us, beside.all_us if beside else None),
        ):
            ratio = None if theirs_us is None else ours_us / theirs_us
            against = "" if beside is None else "the stock SDK"
            yield Figure(f"tracing: {name}, {what}", "us", ours_us, theirs_us, against, ratio)
    pairs = [(_demo(steps, {}), _demo(steps, WITHOUT)) for _ in range(rounds)]
    first, _ = pairs[0]
    step_s = median(traced.step_s for traced, _ in pairs)
    for role in sorted({process.partition("/")[0] for process in first.spans}):
        most = max(
            (spans for process, spans in first.spans.items() if process.partition("/")[0] == role),
            key=lambda spans: spans.all,
        )
        name = f"tracing: {role}"
        yield Figure(f"{name}, spans of a process", "/step", most.all, None, "", None)
        links = LINKS if role == "trainer" else 1  # other roles: at most one for many spans
        own_us, all_us = costs.own_us(most, links), costs.all_us(most, links)
        yield _percent(f"{name}, of the time of a step", own_us / step_s / 1e4, None)
        yield _percent(f"{name}, of a core", all_us / step_s / 1e4, None)
        yield _percent(f"{name}, of a step of one second", 100 * all_us / STEP_US, GOAL_PERCENT)
    ranks = sum(process.partition("/")[0] == "trainer" for process in first.spans)
    sent_us = sum(costs.all_us(spans, 0) for spans in first.spans.values())
    sent_us += ranks * LINKS * costs.link.all_us
    cpu_s = median(traced.cpu_s for traced, _ in pairs)
    yield _percent("tracing: all processes, of their CPU", sent_us / cpu_s / 1e4, None)
    for name, unit, ours, theirs in (
        ("time of a step", "s", [t.step_s for t, _ in pairs], [b.step_s for _, b in pairs]),
        ("CPU of all", "s/step", [t.cpu_s for t, _ in pairs], [b.cpu_s for _, b in pairs]),
    ):
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        yield Figure(
            f"tracing: demo, {name}", unit, median(ours), median(theirs), "no spans", ratio
        )


def _percent(name: str, value: float, goal: float | None) -> Figure:
    return Figure(name, "%", value, None, "", None, goal, Limits.OURS)


def _demo(steps: int, extra: Mapping[str, str]) -> Run:
    with serve(Sink()) as receiver:
        door = receiver.url.removeprefix("http://")
        command = [
            sys.executable,
            "-m",
            "otel_rl",
            "demo",
            "--endpoint",
            door,
            "--no-kill",
        ]
        subprocess.run(
            [*command, "--steps", str(steps)],
            env={**os.environ, **extra},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=600,
        )
        walls = [
            one.value
            for one in receiver.measurements(names.RL_ITERATION_DURATION)
            if one.resource["rl.worker.role"] == "trainer"
        ]
        return Run(
            median(walls),
            _spans(receiver.traces, steps),
            _cpu_s(receiver.metrics) / steps,
        )


def _spans(requests: Sequence[ExportTraceServiceRequest], steps: int) -> Mapping[str, _Spans]:
    """Return the spans of each process, by role and process id."""
    phases: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for request in requests:
        for part in request.resource_spans:
            process = pairs(part.resource.attributes)
            name = f"{process['rl.worker.role']}/{process['process.pid']}"
            for scope in part.scope_spans:
                kind = phases if scope.scope.name == PHASES_SCOPE else others
                kind[name] += len(scope.spans)
    return {
        name: _Spans(phases[name] / steps, others[name] / steps)
        for name in phases.keys() | others.keys()
    }


def _cpu_s(requests: Sequence[ExportMetricsServiceRequest]) -> float:
    """Return the CPU of all processes, from each one's first report to its last."""
    seen: dict[tuple[object, object], list[float]] = {}
    for request in requests:
        for part in request.resource_metrics:
            process = pairs(part.resource.attributes)["service.instance.id"]
            for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
                if metric.name == "process.cpu.time":
                    for point in metric.sum.data_points:
                        mode = pairs(point.attributes)["cpu.mode"]
                        seen.setdefault((process, mode), []).append(point.as_double)
    return sum(max(values) - min(values) for values in seen.values())


def _costs(steps: int, rounds: int) -> _Costs:
    """Return medians over rounds of steps without spans, with them, and with links."""
    phases, spans, stock, links = [], [], [], []
    for _ in range(rounds):
        bare, with_phases, with_links = (
            _loop_s(steps, "phases", *how) for how in ((0, WITHOUT), (0, {}), (LINKS, {}))
        )
        bare_links = _loop_s(steps, "phases", LINKS, WITHOUT)  # ages are measured anyway
        phases.append(with_phases.less(bare).by(steps * (PHASES + 1)))
        links.append(with_links.less(with_phases).less(bare_links.less(bare)).by(steps * LINKS))
        not_made, made, by_stock = (
            _loop_s(steps, of, 0, extra)
            for of, extra in (("spans", WITHOUT), ("spans", {}), ("stock", WITHOUT))
        )
        spans.append(made.less(not_made).by(steps * PHASES))
        stock.append(by_stock.less(not_made).by(steps * PHASES))
    return _Costs(*map(_median, (phases, spans, stock, links)))


def _median(costs: Sequence[_Cost]) -> _Cost:
    return _Cost(median(c.own_us for c in costs), median(c.all_us for c in costs))


def _loop_s(steps: int, of: str, links: int, extra: Mapping[str, str]) -> _Cost:
    with sink() as url:
        done = subprocess.run(
            [sys.executable, "-m", "bench.tracing", str(steps), of, str(links)],
            env={**os.environ, **extra, "OTEL_EXPORTER_OTLP_ENDPOINT": url},
            check=True,
            capture_output=True,
            text=True,
        )
    return _Cost(*json.loads(done.stdout))


def _loop(steps: int, of: str, links: int) -> Sequence[float]:
    """Return CPU microseconds of making steps, and of making and exporting them."""
    otel_rl.init(experiment="bench", role="trainer")
    stamps = []
    for sample in range(LINKS):
        with otel_rl.phase("generate"):
            stamps.append(lineage.stamp(policy_version=sample))
    stock: TracerProvider | None = None
    tracer: trace.Tracer = trace.NoOpTracer()
    if of == "stock":
        worker = session.running()
        stock = stock_tracing(
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"],
            worker.providers.tracer.resource if worker is not None else Resource({}),
        )
        tracer = stock.get_tracer("bench")
    elif os.environ.get("OTEL_TRACES_EXPORTER") != "none":
        tracer = trace.get_tracer("bench")
    begun_s, own_s = time.process_time(), 0.0
    for step in range(steps):
        step_s = time.thread_time()
        if of == "phases":
            _phases_of_a_step(step, stamps[:links])
        else:
            _spans_of_a_step(tracer, step)
        own_s += time.thread_time() - step_s
        if step % 50 == 0:  # faster than any training, so it has to wait for its exporter
            otel_rl.flush(timeout_s=30)
            if stock is not None:
                stock.force_flush()
    if stock is not None:
        stock.shutdown()
    otel_rl.finish(timeout_s=60)
    return own_s * 1e6, (time.process_time() - begun_s) * 1e6


def _phases_of_a_step(step: int, stamps: Sequence[str]) -> None:
    with otel_rl.step(step):
        for _ in range(PHASES - 1):
            with otel_rl.phase("batch_create"):
                pass
        with otel_rl.phase("train"):
            lineage.link(stamps, policy_version=LINKS)


def _spans_of_a_step(tracer: trace.Tracer, step: int) -> None:
    """Make spans as the demo's generators do for a sample."""
    for sample in range(PHASES):
        attributes = {"rl.loop.iteration": step, "rl.policy.version": step, "rl.sample": sample}
        with tracer.start_as_current_span("rl.sample", attributes=attributes) as span:
            span.set_attribute("rl.tokens", 40)


if __name__ == "__main__":
    print(json.dumps(_loop(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
