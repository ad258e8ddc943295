"""What a bridge keeps of a run for a diagnosis, beside its rows."""

from dataclasses import replace

import pytest

from otel_rl.bridge.rows.history import SpanSteps
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind, Verdict
from otel_rl.records import Decoded, Departure, Export, Measurements, Series, SpanRecord, Worker
from tests.support.kept import revived
from tests.support.traces import span as traced_span
from tests.unit.diagnose.made import changed, made
from tests.unit.diagnose.span_builder import span as built_span

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


# How late exports arrive, which is by what a diagnosis judges clocks.


def measured(worker: Worker, step: int, time_ns: int) -> Decoded:
    points = [Measurements(Series(worker, "loss"), [time_ns], [1.0], [step])]
    return Decoded(points=points, exports=[Export(worker, time_ns)])


def history_of_a_bridge_that_was_held_up(held_up_s: float) -> RunHistory:
    """Four workers with right clocks, of which one ends before the bridge is held up."""
    workers = [Worker("learner", f"l{rank}", index=rank, count=4) for rank in range(4)]
    aligner, bodies, now_ns = Run(), [], T0
    for step in range(40):
        now_ns += S
        if step == 20:
            now_ns += int(held_up_s * S)
            aligner = revived(aligner)
            aligner.go_on(now_ns)
        for worker in workers if step < 20 else workers[1:]:
            aligner.clock_is(now_ns)
            aligner.add(measured(worker, step, now_ns - S // 10), received_ns=now_ns)
        aligner.close(now_ns)
        record = aligner.take_history(now_ns, everything=True)
        bodies += [record.body] if record is not None else []
    return RunHistory(Facts.decode(body) for body in bodies)


def test_a_bridge_that_was_held_up_makes_no_clock_wrong() -> None:
    history = history_of_a_bridge_that_was_held_up(24.0)
    lags = [lag_s for track in history.lags.values() for lag_s in track.values]
    assert (round(min(lags), 3), round(max(lags), 3)) == (0.1, 0.1)
    # The worker that ended told nobody, and the others went on.
    causes = [(cause.kind, cause.worker) for cause in diagnose(history).causes]
    assert causes == [(Kind.CRASH, "learner/0")]


def history_of_spans(ahead_s: dict[str, float], late_s: float = 2.0) -> RunHistory:
    """Workers of a plain SDK that send spans alone: their exports have no time."""
    workers = [Worker("env", f"e{index}", index=index, count=6) for index in range(6)]
    aligner, bodies, now_ns = Run(), [], T0
    for step in range(40):
        now_ns += S
        for worker in workers:
            own_ns = now_ns + int((ahead_s.get(worker.instance, 0.0) - late_s) * S)
            span = SpanRecord(
                f"{step:08}{worker.instance:>16}".encode(), None, (), "env", worker.instance,
                "host", own_ns - S // 2, own_ns, "tool", "tool", "", step, failed=False,
            )  # fmt: skip
            aligner.clock_is(now_ns)
            aligner.add(
                Decoded((), [Export(worker, 0)], spans=[span], sampled={}), received_ns=now_ns
            )
        aligner.close(now_ns)
        record = aligner.take_history(now_ns, everything=True)
        bodies += [record.body] if record is not None else []
    return RunHistory(Facts.decode(body) for body in bodies)


@pytest.mark.parametrize(
    ("ahead_s", "told"),
    [
        ({"e1": 30.0}, ["env/1"]),
        ({"e1": 3.0}, []),  # within the time that exports take
        ({}, []),
        (dict.fromkeys(["e0", "e1", "e2", "e3", "e4", "e5"], 30.0), []),  # the bridge's is wrong
    ],
)
def test_spans_that_end_after_their_arrival_prove_a_clock_ahead(
    ahead_s: dict[str, float], told: list[str]
) -> None:
    causes = diagnose(history_of_spans(ahead_s)).causes
    assert [one.worker for one in causes if one.kind is Kind.CLOCK_SKEW] == told
    assert len(causes) == len(told)


# Hosts and process ids of workers, which a diagnosis names beside the worker.

RANKS = [Worker("trainer", f"t{rank}", index=rank, count=2) for rank in range(2)]


def records(*, restarts: bool = False, max_bytes: int = 1 << 20) -> list[Facts]:
    """What is kept of two trainers, of which one tells its host in every second export only."""
    aligner = Run(AlignSettings(max_history_bytes=max_bytes))
    found, now_ns = list[Facts](), T0
    for step in range(200):
        now_ns += S
        if restarts and step == 100:
            aligner = revived(aligner)
        for worker in RANKS:
            host = f"node-{worker.index}" if step % 2 or worker.index else ""
            points = [Measurements(Series(worker, "loss"), [now_ns], [1.0], [step])]
            export = Export(worker, now_ns, host=host, pid=100 + (worker.index or 0))
            aligner.add(Decoded(points=points, exports=[export]), received_ns=now_ns)
        aligner.close(now_ns)
        record = aligner.take_history(now_ns, everything=True)
        found += [Facts.decode(record.body)] if record is not None else []
    return [one for one in found if one.time_ns > aligner.intake.history.kept.forgotten_ns]


PLACES = {"trainer/0": ("node-0", 100), "trainer/1": ("node-1", 101)}


@pytest.mark.parametrize("restarts", [False, True])
def test_the_place_of_a_worker_is_recorded_when_it_is_told_and_after_a_restart(
    restarts: bool,
) -> None:
    told = records(restarts=restarts)
    assert RunHistory(told).places == PLACES
    assert len([one for one in told if one.places]) == (4 if restarts else 2)
    assert RunHistory(told).between(50, 60).places == PLACES


def test_the_places_of_all_are_recorded_again_when_the_oldest_records_are_forgotten() -> None:
    kept = records(max_bytes=8_000)
    assert kept[0].step > 50
    assert RunHistory(kept).places == PLACES


def test_a_cause_names_the_host_and_the_process_of_its_worker() -> None:
    spans = {("trainer", "train", rank): changed(1.0, 1.0 + 2 * (rank == 1)) for rank in range(4)}
    history = made(spans=spans, step_s=changed(1.0, 3.0))
    history.places.update(PLACES)
    (cause,) = diagnose(history).causes
    assert (cause.worker, cause.host, cause.pid) == ("trainer/1", "node-1", 101)


# Runs that send spans and no metric.


def step(role: str, number: int, took_s: int) -> list[SpanRecord]:
    start = T0 + number * 10 * S
    worker = f"{role}-0"
    root = built_span(f"step#{number}", start, start + took_s * S, worker=worker, step=number)
    train = built_span(
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


# Steps of spans that do not tell theirs.

LOOP = traced_span("rl.loop", 0, 100, step=22)
PART = traced_span("train", 10, 90, within="rl.loop")


def test_metrics_tell_the_step_of_all_spans_whether_or_not_the_one_around_has_come() -> None:
    """It ends later, and comes in a later message of some workers."""
    steps = SpanSteps()

    with_loop = {of.name: step for of, step in steps.of([PART, LOOP], lambda _: 21)}
    alone = {of.name: step for of, step in steps.of([PART], lambda _: 21)}

    assert with_loop == {"train": 21, "rl.loop": 22}
    assert alone == {"train": 21}


def test_without_metrics_a_span_has_the_step_of_the_one_around() -> None:
    found = {of.name: step for of, step in SpanSteps().of([PART, LOOP], _no_metric)}

    assert found == {"train": 22, "rl.loop": 22}


def _no_metric(_: int) -> None:
    return None
