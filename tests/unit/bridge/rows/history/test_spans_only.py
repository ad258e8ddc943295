"""Runs that send spans and no metric."""

from dataclasses import replace

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Verdict
from otel_rl.records import Decoded, Export, SpanRecord, Worker
from tests.unit.diagnose.span_builder import span

S = 1_000_000_000
T0 = 1_700_000_000 * S


def step(role: str, number: int, took_s: int) -> list[SpanRecord]:
    start = T0 + number * 10 * S
    worker = f"{role}-0"
    root = span(f"step#{number}", start, start + took_s * S, worker=worker, step=number)
    train = span(
        f"train#{number}", start, start + took_s * S, worker=worker, within=f"step#{number}"
    )
    return [train, replace(root, name="rl.loop")]


@pytest.mark.parametrize("role", ["trainer", "controller"])
def test_spans_without_any_metric_are_a_run_too(role: str) -> None:
    aligner, bodies, now_ns = Run(), [], T0
    for number in range(60):
        now_ns = T0 + (number * 10 + 8) * S
        spans = step(role, number, 2 if number < 30 else 6)
        worker = Worker(role, f"{role}-0", index=0, count=1)
        decoded = Decoded([], exports=[Export(worker, now_ns)], spans=spans)
        aligner.add(decoded, received_ns=now_ns)
        aligner.close(now_ns, everything=number == 59)
        record = aligner.take_history(now_ns, everything=True)
        bodies += [record.body] if record is not None else []
    history = RunHistory(Facts.decode(body) for body in bodies)
    assert (history.last, len(history.steps)) == (59, 60)
    report = diagnose(history)
    assert report.verdict is Verdict.CAUSE or report.verdict is Verdict.NO_CLEAR_CAUSE
    assert report.symptoms == ["a step takes 3.0 times as long since step 30: 2 s before, 6 s now"]
