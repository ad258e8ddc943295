"""Steps of which the last spans of a worker may be missing are marked in the run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Decoded,
    Departure,
    Export,
    Measurements,
    Row,
    Series,
    SpanRecord,
    Worker,
)
from tests.unit.diagnose.span_builder import span

S = 1_000_000_000
T0 = 1_700_000_000 * S

TRAINER = Worker("trainer", "trainer-0", index=0, count=1)
GENERATOR = Worker("generator", "generator-0", index=0, count=1)

PARTIAL = "critical_path/partial"
MISSED = "critical_path/missed"


def step(number: int, *, with_sample: bool = True) -> list[SpanRecord]:
    """A second in which a sample is made and then learned from."""
    start, middle, end = (T0 + int((number + share) * S) for share in (0, 0.5, 1))
    sample, root = f"generate#{number}", f"step#{number}"
    loop = span(root, start, end, step=number, uses=[sample], host="one")
    return [
        replace(loop, name="rl.loop"),
        span(f"train#{number}", middle, end, within=root, host="one"),
        *([span(sample, start, middle, worker="generator-0", host="one")] if with_sample else []),
    ]


class Bench:
    """An aligner and a clock that tests move by hand."""

    def __init__(self) -> None:
        self.aligner = Run(AlignSettings(spans_wait_s=10, worker_timeout_s=15))
        self.rows: list[Row] = []

    def hear(
        self,
        at_s: float,
        *workers: Worker,
        spans: Sequence[SpanRecord] = (),
        leaving: Sequence[Worker] = (),
    ) -> None:
        at_ns = self.at_ns(at_s)
        exports = [Export(worker, at_ns, sends_exit_report=True) for worker in workers]
        steps = [span.step for span in spans if span.step is not None]
        losses = self.measured(at_s, *steps)
        departures = [Departure(worker, at_ns + 1, failed=False) for worker in leaving]
        self.aligner.add(
            Decoded(losses, exports, departures=departures, spans=spans), received_ns=at_ns
        )
        self.look(at_s)

    def look(self, at_s: float, *, everything: bool = False) -> None:
        self.rows += self.aligner.close(self.at_ns(at_s), everything=everything)

    def at_ns(self, at_s: float) -> int:
        return T0 + int(at_s * S)

    def measured(self, at_s: float, *steps: int) -> Sequence[Measurements]:
        """The trainer's loss at these steps."""
        n, series = len(steps), Series(TRAINER, "loss")
        return [Measurements(series, [self.at_ns(at_s)] * n, [1.0] * n, steps)] if n else []

    def partial(self) -> Mapping[int, float | None]:
        """Number of workers whose spans may be missing, of each step that is explained."""
        explained = (row for row in self.rows if "critical_path/longest" in (row.labels or {}))
        return {row.step: row.values.get(PARTIAL) for row in explained}


def test_a_run_that_ends_without_goodbyes_marks_the_steps_that_may_lack_spans() -> None:
    bench = Bench()
    bench.hear(1, TRAINER, GENERATOR, spans=step(0))
    bench.hear(2, TRAINER, GENERATOR, spans=step(1, with_sample=False))
    bench.aligner.end(failed=False)
    bench.look(2, everything=True)
    assert bench.partial() == {0: 1, 1: 1}
    last = max(bench.rows, key=lambda row: (row.step, MISSED in (row.labels or {})))
    assert (last.labels or {})[MISSED] == "generator/0"


def test_a_run_in_which_all_have_said_goodbye_has_no_partial_step() -> None:
    bench = Bench()
    bench.hear(1, TRAINER, GENERATOR, spans=step(0))
    bench.hear(2, TRAINER, GENERATOR, spans=step(1, with_sample=False), leaving=[GENERATOR])
    bench.hear(2.5, leaving=[TRAINER])
    bench.aligner.end(failed=False)
    bench.look(3, everything=True)
    assert bench.partial() == {0: None, 1: None}


def test_only_the_last_seconds_of_who_was_idle_before_the_end_may_lack_spans() -> None:
    bench = Bench()
    for second in range(30):
        spans = step(second, with_sample=second < 3)
        bench.hear(second + 1, TRAINER, GENERATOR, spans=spans)
    bench.aligner.end(failed=False)
    bench.look(30, everything=True)
    partial = [number for number, missed in bench.partial().items() if missed]
    assert partial == [25, 26, 27, 28, 29]


def test_the_steps_around_a_kill_are_partial_and_those_long_after_are_not() -> None:
    bench = Bench()
    for second in range(40):
        is_killed = second > 5
        spans = step(second, with_sample=not is_killed)
        bench.hear(second + 1, TRAINER, *([] if is_killed else [GENERATOR]), spans=spans)
    bench.look(60)
    partial = [number for number, missed in bench.partial().items() if missed]
    # Its last span ended at 5.5 s, its last export was at 6 s, the next one would have been at 7 s.
    assert partial == [5, 6]
