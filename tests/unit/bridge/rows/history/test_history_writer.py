"""What a bridge keeps of a run for a diagnosis, beside its rows."""

from dataclasses import replace

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.diagnose.history.records import Facts, SpanFacts, WorkerFacts
from otel_rl.records import Decoded, Departure, Export, Measurements, Series, SpanRecord, Worker
from tests.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S

RANK0 = Worker("trainer", "a", index=0, count=2)
RANK1 = Worker("trainer", "b", index=1, count=2)


class Bench:
    """An aligner, and a clock that tests move by hand."""

    def __init__(self, **settings: float) -> None:
        self.aligner = Run(AlignSettings.model_validate(settings))
        self.now_ns = T0

    def measure(self, worker: Worker, name: str, values: dict[int, float]) -> None:
        times_ns = [self.now_ns + place for place in range(len(values))]
        series = Series(worker, name)
        point = Measurements(series, times_ns, list(values.values()), list(values))
        self.send(worker, Decoded([point], [Export(worker, self.now_ns + len(values))]))

    def send(self, worker: Worker, decoded: Decoded) -> None:
        if not decoded.exports:
            decoded = replace(decoded, exports=[Export(worker, self.now_ns)])
        self.aligner.add(decoded, received_ns=self.now_ns + S // 10)

    def facts(self, *, after_s: float = 2.0, everything: bool = True) -> Facts:
        """What became known since the last call."""
        self.now_ns += int(after_s * S)
        self.aligner.close(self.now_ns, everything=everything)
        history = self.aligner.take_history(self.now_ns, everything=everything)
        assert history is not None
        facts = Facts.decode(history.body)
        assert facts.time_ns == history.newest_ns
        return facts


def span(
    name: str, start_s: float, end_s: float, *, within: str | None = None, worker: str = "a"
) -> SpanRecord:
    return SpanRecord(
        name.encode(),
        None if within is None else within.encode(),
        (),
        "trainer",
        worker,
        "host",
        T0 + int(start_s * S),
        T0 + int(end_s * S),
        name,
        step=7,
    )


def test_each_worker_is_kept_with_what_it_measured_in_each_step() -> None:
    bench = Bench()
    bench.measure(RANK0, "loss", {1: 1.0, 2: 2.0})
    bench.measure(RANK1, "loss", {1: 3.0, 2: float("nan")})
    facts = bench.facts()
    assert sorted(facts.workers["trainer/loss"]) == [
        WorkerFacts("trainer/0", 1, 1, 1.0, 0),
        WorkerFacts("trainer/0", 2, 1, 2.0, 0),
        WorkerFacts("trainer/1", 1, 1, 3.0, 0),
        WorkerFacts("trainer/1", 2, 0, 0.0, 1),
    ]
    assert [(row.step, row.values["trainer/loss"]) for row in facts.rows][:1] == [(1, 2.0)]


def test_many_steps_at_once_are_one_mean() -> None:
    bench = Bench()
    bench.measure(RANK0, "loss", {step: float(step) for step in range(1, 101)})
    (only,) = bench.facts().workers["trainer/loss"]
    assert only == WorkerFacts("trainer/0", 100, 100, 5050.0, 0)


def test_of_many_workers_those_that_stand_out_are_kept() -> None:
    bench = Bench()
    for index in range(100):
        worker = Worker("trainer", str(index), index=index, count=100)
        bench.measure(worker, "loss", {1: 1000.0 if index == 57 else float(index)})
    kept = {one.worker for one in bench.facts().workers["trainer/loss"]}
    assert len(kept) == 32
    assert {"trainer/57", "trainer/0", "trainer/99"} <= kept


@pytest.mark.parametrize(("ranks", "kept"), [(64, 64), (65, 32)])
def test_of_no_more_than_a_few_dozen_workers_all_are_kept(ranks: int, kept: int) -> None:
    bench = Bench()
    for index in range(ranks):
        worker = Worker("trainer", str(index), index=index, count=ranks)
        bench.measure(worker, "loss", {1: float(index)})
    assert len(bench.facts().workers["trainer/loss"]) == kept


def test_a_span_is_kept_without_the_time_of_those_within_it() -> None:
    bench = Bench()
    spans = [span("forward", 0.0, 1.0, within="train"), span("train", 0.0, 1.5)]
    bench.send(RANK0, Decoded((), (), spans=spans))
    assert sorted(bench.facts().spans) == [
        SpanFacts(7, "trainer", "forward", "trainer/0", False, 1, 1.0, 1.0, 0),
        SpanFacts(7, "trainer", "train", "trainer/0", False, 1, 0.5, 0.5, 0),
    ]


def test_spans_of_tools_are_kept_for_each_tool() -> None:
    bench = Bench()
    called = [
        replace(span(name, at, at + 1), phase="env_step")
        for at, name in enumerate(["execute_tool search", "execute_tool python", "env.step"])
    ]
    bench.send(RANK0, Decoded((), (), spans=called))
    phases = {one.phase for one in bench.facts().spans}
    assert phases == {"execute_tool search", "execute_tool python", "env_step"}


def test_spans_within_others_may_come_after_them_in_a_message() -> None:
    """A request has the spans of one instrumentation scope after those of another."""
    bench = Bench()
    spans = [
        span("outer", 0, 10),
        span("outer#2", 10, 20),
        span("inner", 2, 10, within="outer"),
        span("inner#2", 12, 20, within="outer#2"),
    ]
    bench.send(RANK0, Decoded([], [], spans=spans))
    assert {one.phase: one.total_s for one in bench.facts().spans} == {
        "outer": 2.0,
        "outer#2": 2.0,
        "inner": 8.0,
        "inner#2": 8.0,
    }


def test_a_span_within_may_have_come_in_a_message_before() -> None:
    bench = Bench()
    bench.send(RANK0, Decoded((), (), spans=[span("forward", 0.0, 1.0, within="train")]))
    bench.facts()
    bench.send(RANK0, Decoded((), (), spans=[span("train", 0.0, 1.5)]))
    (train,) = bench.facts().spans
    assert train.total_s == 0.5


def test_a_span_of_another_process_within_is_its_own() -> None:
    bench = Bench()
    other = span("score", 0.0, 1.0, within="train", worker="b")
    bench.send(RANK1, Decoded((), (), spans=[other]))
    bench.send(RANK0, Decoded((), (), spans=[span("train", 0.0, 1.5)]))
    assert {one.phase: one.total_s for one in bench.facts().spans} == {"score": 1.0, "train": 1.5}


def test_spans_that_come_again_are_kept_once() -> None:
    """A sender whose answer was lost, or a collector that was stopped, sends them again."""
    bench = Bench()
    spans = [span("forward", 0.0, 1.0, within="train"), span("train", 0.0, 1.5)]
    for sent in (spans, [spans[1]], spans[::-1]):
        bench.send(RANK0, Decoded((), (), spans=sent))
    once = [
        SpanFacts(7, "trainer", "forward", "trainer/0", False, 1, 1.0, 1.0, 0),
        SpanFacts(7, "trainer", "train", "trainer/0", False, 1, 0.5, 0.5, 0),
    ]
    assert sorted(bench.facts().spans) == once


def test_spans_that_are_twice_in_a_message_are_kept_once() -> None:
    bench = Bench()
    bench.send(RANK0, Decoded((), (), spans=[span("train", 0.0, 1.5)] * 2))
    (train,) = bench.facts().spans
    assert (train.spans, train.total_s) == (1, 1.5)


def test_spans_that_come_again_after_they_were_forgotten_are_not_kept_again() -> None:
    bench = Bench(max_spans=10)
    first = span("train", 0.0, 1.5)
    bench.send(RANK0, Decoded((), (), spans=[first]))
    bench.facts()
    bench.send(RANK0, Decoded((), (), spans=[span(f"s{n}", 10, 11 + n) for n in range(11)]))
    bench.facts()
    bench.send(RANK0, Decoded((), (), spans=[first]))
    assert bench.aligner.sample_counts.spans_too_old > 0
    assert bench.aligner.take_history(bench.now_ns + 2 * S, everything=True) is None


def test_spans_that_come_again_after_a_restart_are_not_kept_again() -> None:
    bench = Bench()
    bench.send(RANK0, Decoded((), (), spans=[span("train", 0.0, 1.5)]))
    bench.facts()
    trail = bench.aligner.span_window.recent.take_log()
    assert trail is not None
    bench.aligner = revived(bench.aligner)
    bench.aligner.restore_spans(trail.body)
    bench.send(RANK0, Decoded((), (), spans=[span("train", 0.0, 1.5)]))
    assert bench.aligner.take_history(bench.now_ns + 2 * S, everything=True) is None


@pytest.mark.parametrize("others", [0, 4_100], ids=["a restart", "many others and a restart"])
def test_spans_of_a_clock_far_behind_that_come_again_are_not_kept_again(others: int) -> None:
    """They are forgotten at once; what is known of them is how far their worker has come."""
    bench = Bench(max_spans=10)
    bench.send(RANK0, Decoded((), (), spans=[span(f"s{n}", 10, 11 + n) for n in range(11)]))
    behind = [span("far", -9000 + n, -8999 + n, worker="b") for n in range(4)]
    behind = [replace(one, span_id=bytes([n])) for n, one in enumerate(behind)]
    for one in behind:
        bench.send(RANK1, Decoded((), (), spans=[one]))
    for n in range(others):
        other = span(f"o{n}", -9000, -8999, worker=f"other {n}")
        bench.aligner.add(Decoded((), (), spans=[other]), received_ns=bench.now_ns)
    assert sum(one.spans for one in bench.facts().spans if one.phase == "far") == 3
    log = bench.aligner.span_window.recent.take_log()
    bench.aligner = revived(bench.aligner)
    assert log is not None
    bench.aligner.restore_spans(log.body)
    for one in behind:
        bench.send(RANK1, Decoded((), (), spans=[one]))
    assert bench.aligner.take_history(bench.now_ns + 2 * S, everything=True) is None


def test_how_much_later_than_by_its_clock_each_worker_was_heard_is_kept() -> None:
    bench = Bench()
    bench.measure(RANK0, "loss", {1: 1.0})
    ahead = Decoded((), [Export(RANK1, bench.now_ns + 20 * S)])
    bench.send(RANK1, ahead)
    lags = dict(bench.facts().lags)
    assert 0 < lags["trainer/0"] <= 0.1
    assert -20 <= lags["trainer/1"] < -19


def test_an_export_that_comes_again_does_not_make_its_worker_look_slow() -> None:
    bench = Bench()
    series = Series(RANK0, "memory")
    sent = Decoded(
        [Measurements(series, [bench.now_ns], [1.0], [None])], [Export(RANK0, bench.now_ns)]
    )
    bench.send(RANK0, sent)
    assert dict(bench.facts().lags)["trainer/0"] <= 0.1
    bench.now_ns += 3600 * S
    bench.send(RANK0, sent)
    bench.measure(RANK1, "loss", {1: 1.0})
    assert "trainer/0" not in dict(bench.facts().lags)


def test_a_worker_that_is_lost_is_told_once() -> None:
    bench = Bench()
    bench.measure(RANK0, "loss", {1: 1.0})
    bench.send(RANK0, Decoded((), (), departures=[Departure(RANK0, bench.now_ns + S, failed=True)]))
    assert bench.facts().lost == ["trainer/0"]
    bench.measure(RANK1, "loss", {1: 1.0})
    assert bench.facts().lost == []


def test_nothing_more_is_kept_than_the_bound_and_the_oldest_is_forgotten() -> None:
    bench = Bench(max_history_bytes=20_000)
    kept: list[tuple[int, int]] = []
    for step in range(300):
        bench.measure(RANK0, f"m{step % 7}", {step: float(step)})
        bench.now_ns += 2 * S
        bench.aligner.close(bench.now_ns, everything=True)
        history = bench.aligner.take_history(bench.now_ns, everything=True)
        assert history is not None
        kept.append((history.newest_ns, len(history.body)))
        if step % 50 == 0:  # a restart
            bench.aligner = revived(bench.aligner)
            bench.aligner.intake.settings = AlignSettings(max_history_bytes=20_000)
        left = sum(size for at, size in kept if at > bench.aligner.intake.history.kept.forgotten_ns)
        assert left <= 20_000
    assert left > 15_000
    assert kept[-1][0] > bench.aligner.intake.history.kept.forgotten_ns > kept[0][0]


def test_nothing_is_kept_if_nothing_may_be() -> None:
    bench = Bench(max_history_bytes=0)
    bench.measure(RANK0, "loss", {1: 1.0})
    bench.aligner.close(bench.now_ns + S, everything=True)
    assert bench.aligner.take_history(bench.now_ns + S, everything=True) is None


def test_what_became_known_a_moment_ago_waits_for_more_unless_there_are_rows() -> None:
    bench = Bench()
    bench.measure(RANK0, "loss", {1: 1.0})
    bench.facts()
    bench.measure(RANK0, "loss", {2: 1.0})
    assert bench.aligner.take_history(bench.now_ns + S // 2) is None
    assert bench.aligner.take_history(bench.now_ns + 2 * S) is not None
