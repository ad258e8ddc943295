"""Which steps the page *Timeline* shows, of roles and hosts that do not agree."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import KnownWorker, Standing
from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.records import ExperimentKey, SpanRecord
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.view.pages import Pages
from otel_rl.view.parts import timeline
from otel_rl.view.questions import Question
from tests.support.traces import keep_spans
from tests.support.view_runs import T0, S

KEY = ExperimentKey("grpo", "1")


def root(
    step: int,
    begun_s: float,
    end_s: float,
    *,
    worker: str = "trainer-rank-0",
    host: str = "host",
    uses: tuple[str, ...] = (),
) -> SpanRecord:
    """Return the span of a whole step."""
    return SpanRecord(
        _id(f"{worker} {begun_s}"),
        None,
        tuple(map(_id, uses)),
        worker.partition("-")[0],
        worker,
        host,
        T0 + int(begun_s * S),
        T0 + int(end_s * S),
        STEP_SPAN,
        step=step,
    )


def _id(name: str) -> bytes:
    return name.encode().rjust(24, b"\1")


def asked(directory: Path, spans: Iterator[SpanRecord], part: str, **query: str) -> Any:
    """Keep spans, and return what a part of the page shows of them."""
    keep_spans(directory, KEY, sorted(spans, key=lambda one: one.end_ns))
    pages = Pages(BridgeSettings(data=directory))
    answer = pages.answer(Question(f"runs/{run_id(KEY.experiment, KEY.trial)}/{part}", query))
    pages.close()
    found = json.loads(gzip.decompress(answer.body) if answer.encoding else answer.body)
    assert answer.status == 200, found
    return found


@pytest.mark.parametrize("faster", [1, 2, 5])
def test_steps_before_and_after_a_fault_are_of_one_role_however_fast_another_steps(
    tmp_path: Path, faster: int
) -> None:
    def spans() -> Iterator[SpanRecord]:
        for step in range(30):
            yield root(step, 10 * step, 10 * step + 9)
        for step in range(3 * faster):  # for a while
            begun_s = 109 + step * 10 / faster
            yield root(step, begun_s, begun_s + 9 / faster, worker="generator-0")

    change = asked(tmp_path, spans(), "change", since="12")
    assert change["after"]["steps"][0]["step"] == 12
    assert change["after"]["steps"][0]["seconds"] == pytest.approx(9)
    assert change["after"]["lanes"][0]["name"].startswith("trainer/")
    assert change["before"]["steps"][0]["step"] < 12


@pytest.mark.parametrize(("seconds", "slowest"), [(30, 20), (9, None)])
def test_of_the_steps_of_a_fault_the_first_is_shown_and_the_slowest_where_it_is_slower(
    tmp_path: Path, seconds: int, slowest: int | None
) -> None:
    def spans() -> Iterator[SpanRecord]:
        for step in range(30):
            begun_s = 40 * step
            yield root(step, begun_s, begun_s + (seconds if step == 20 else 9))

    change = asked(tmp_path, spans(), "change", since="12", until="25")
    shown = change.get("slowest")
    assert change["after"]["steps"][0]["step"] == 12
    assert (shown and shown["steps"][0]["step"]) == slowest


def test_ranks_of_a_host_whose_clock_is_far_ahead_make_the_same_step(tmp_path: Path) -> None:
    def spans() -> Iterator[SpanRecord]:
        for step in range(5):
            yield root(step, step, step + 0.9)
            yield root(step, step + 20, step + 20.9, worker="trainer-rank-1", host="ahead")

    found = asked(tmp_path, spans(), "timeline", first="2", last="2")
    assert [lane["name"] for lane in found["lanes"]] == ["trainer/rank-0", "trainer/rank-1"]


def test_a_clock_far_ahead_is_corrected_by_those_of_its_peers(tmp_path: Path) -> None:
    def spans() -> Iterator[SpanRecord]:
        for step in range(5):
            peer, own = f"trainer-rank-1 {step + 20}", f"trainer-rank-0 {step}"
            yield root(step, step, step + 0.9)
            yield root(
                step, step + 20, step + 20.9, worker="trainer-rank-1", host="ahead", uses=(own,)
            )
            yield root(step + 5, step + 5, step + 5.9, uses=(peer,))

    found = asked(tmp_path, spans(), "timeline", first="2", last="2")
    (clock,) = found["clocks"]
    assert clock["host"] == "ahead"
    assert clock["seconds"] > 0


@pytest.mark.parametrize("instance", ["trainer-rank-{}", "trainer-replaced-{}"])
def test_of_a_step_that_is_made_again_the_last_pass_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: str
) -> None:
    def spans() -> Iterator[SpanRecord]:
        for begun_s, of in ((0, "trainer-rank-{}"), (100, instance)):
            for step in range(5):
                for rank in range(2):
                    at_s = begun_s + step
                    yield root(step, at_s, at_s + 0.9, worker=of.format(rank))

    known = [
        KnownWorker(of.format(rank), f"trainer/{rank}", WorkerStanding.ALIVE, 0, 0, None)
        for of in ("trainer-rank-{}", "trainer-replaced-{}")
        for rank in range(2)
    ]
    monkeypatch.setattr(timeline, "read_standing", lambda *_: Standing(known, ""))
    found = asked(tmp_path, spans(), "timeline", first="2", last="2")
    assert found["seconds"] == pytest.approx(0.9)
    assert found["start_ms"] == (T0 + 102 * S) / 1e6
