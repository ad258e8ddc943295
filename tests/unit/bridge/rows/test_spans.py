"""Spans to what decided how long each step took."""

import gc
import tracemalloc
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

import pytest

from otel_rl.bridge.journal.state import decode, encode
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.span_log import read_spans
from otel_rl.bridge.rows.spans import SpanWindow
from otel_rl.bridge.rows.step_analysis import MAX_WORKERS, StepAnalysis
from otel_rl.records import SpanRecord
from tests.support.costs import cost_ratio
from tests.unit.diagnose.span_builder import span

S = 1_000_000_000


def step(number: int, *, rank: int = 0, late_s: float = 0) -> list[SpanRecord]:
    """A step of a second of one rank: half of it a wait for a sample, then training."""
    start, middle = number * S, number * S + S // 2
    end = start + S + int(late_s * S)
    worker, own = f"trainer-{rank}", f"{number}.{rank}"
    root, sample = f"step#{own}", f"generate#{own}"
    loop = span(root, start, end, worker=worker, step=number, uses=[sample], host="one")
    return [
        span(sample, start, middle, worker=f"generator-{rank}", host="two"),
        span(f"collector_wait#{own}", start, middle, worker=worker, within=root, waits=True),
        span(f"train#{own}", middle, end, worker=worker, within=root, host="one"),
        replace(loop, name="rl.loop"),
    ]


class Bench:
    """A window and a clock that tests move by hand."""

    def __init__(self, **settings: float) -> None:
        self.settings = AlignSettings.model_validate({"spans_wait_s": 10, **settings})
        self.window = SpanWindow()
        self.now_ns = 1000 * S

    def send(self, spans: list[SpanRecord]) -> int:
        return self.window.add(spans, self.settings, self.now_ns)

    def explain(
        self,
        after_s: float = 0,
        *,
        everything: bool = False,
        missed: Mapping[str, tuple[float, float]] | None = None,
    ) -> list[StepAnalysis]:
        self.now_ns += int(after_s * S)
        unheard = {
            worker: (int(from_s * S), int(until_s * S))
            for worker, (from_s, until_s) in (missed or {}).items()
        }
        return list(
            self.window.close(
                "trainer", self.settings, self.now_ns, lambda: unheard, everything=everything
            )
        )

    def restart(self) -> None:
        """With the state and the log as they were committed."""
        log = self.window.recent.take_log()
        self.window = decode(encode(self.window), SpanWindow)
        if log is not None:
            self.window.recent.restore(log.body, self.settings)


@pytest.mark.parametrize("restarts", [False, True])
def test_many_steps_are_explained_some_at_a_time_and_each_once(restarts: bool) -> None:
    bench = Bench()
    for number in range(1, 101):
        bench.send(step(number))
    looks = [bench.explain(after_s=10)]
    while bench.window.has_more:
        if restarts and len(looks) == 2:
            bench.restart()
            bench.now_ns += 10 * S
        looks.append(bench.explain())
        bench.send(step(1))  # what comes again meanwhile is not explained again
    assert [one.step for look in looks for one in look] == list(range(1, 101))
    assert max(map(len, looks)) <= 32
    assert bench.explain(after_s=10) == []


@pytest.mark.slow
def test_the_spans_of_many_processes_are_sorted_in_parts() -> None:
    bench = Bench()
    for number in range(1, 1_001):
        bench.send([one for rank in range(10) for one in step(number, rank=rank)])
    looks = [bench.explain(after_s=10)]
    while bench.window.has_more:
        looks.append(bench.explain())
    before = next(place for place, found in enumerate(looks) if found)
    assert before > 2
    assert [one.step for look in looks for one in look] == list(range(1, 1_001))


def test_steps_of_many_processes_are_explained_a_few_at_a_time() -> None:
    bench = Bench()
    for number in range(1, 11):
        bench.send([one for rank in range(500) for one in step(number, rank=rank)])
    looks = [bench.explain(after_s=10)]
    while bench.window.has_more:
        looks.append(bench.explain())
    assert [one.step for look in looks for one in look] == list(range(1, 11))
    assert max(map(len, looks)) <= 2


def test_the_last_look_explains_all_that_is_left() -> None:
    bench = Bench()
    for number in range(1, 101):
        bench.send(step(number))
    first = bench.explain(after_s=10)
    bench.send(step(200))
    left = bench.explain(everything=True)
    assert [one.step for one in [*first, *left]] == [*range(1, 101), 200]


def test_a_step_is_what_each_role_and_phase_took_of_it() -> None:
    bench = Bench()
    bench.send(step(3))
    (explained,) = bench.explain(after_s=10)
    assert (explained.step, explained.time_ns) == (3, 4 * S)
    assert explained.values == {
        "critical_path/generator/generate": 0.5,
        "critical_path/trainer/train": 0.5,
    }


def test_a_step_waits_for_the_spans_of_all_processes() -> None:
    bench = Bench()
    sample, *rest = step(3)
    bench.send(rest)
    assert bench.explain(after_s=9) == []
    assert bench.window.is_open
    bench.send([sample])
    (explained,) = bench.explain(after_s=6)
    assert "critical_path/generator/generate" in explained.values
    assert not bench.window.is_open


def test_a_step_that_may_lack_the_last_spans_of_a_worker_is_partial() -> None:
    bench = Bench()
    for number in (3, 4, 5, 9):
        bench.send(step(number) if number < 5 else step(number)[1:])  # the generator's do not come
    missed = {"generator-0": (1.0, 5.5), "trainer-0": (8.0, 20.0)}
    explained = bench.explain(after_s=10, missed=missed)
    # Steps are a second long; the generator's last span is of 4 s to 4.5 s.
    assert {of.step: [*of.missed] for of in explained} == {
        3: [],
        4: ["generator-0"],
        5: ["generator-0"],
        9: [],
    }


def test_a_worker_that_never_made_a_span_makes_no_step_partial() -> None:
    bench = Bench()
    bench.send(step(3))
    (explained,) = bench.explain(after_s=10, missed={"stranger": (0, 3.5)})
    assert explained.missed == []


def test_of_several_ranks_the_last_is_explained() -> None:
    bench = Bench()
    bench.send([*step(3, rank=0), *step(3, rank=1, late_s=1)])
    (explained,) = bench.explain(after_s=10)
    assert explained.time_ns == 5 * S
    assert sum(explained.values.values()) == pytest.approx(2.0)
    assert (explained.worker, explained.longest) == ("trainer-1", "trainer/train")


def test_steps_of_other_roles_are_not_explained() -> None:
    bench = Bench()
    other = [replace(one, role="reward") for one in step(3)]
    bench.send(other)
    assert bench.explain(after_s=10) == []
    assert not bench.window.is_open


def test_a_step_is_explained_once_though_its_spans_come_again() -> None:
    bench = Bench()
    bench.send(step(3))
    assert len(bench.explain(after_s=10)) == 1
    bench.send(step(3))
    bench.send(step(3, rank=1))
    assert bench.explain(after_s=20) == []


def test_spans_that_wait_survive_a_restart() -> None:
    bench = Bench()
    bench.send(step(3))
    bench.restart()
    (explained,) = bench.explain(after_s=10)
    assert len(explained.values) == 2


def test_a_step_is_not_explained_again_after_a_restart() -> None:
    bench = Bench()
    bench.send(step(3))
    bench.explain(after_s=10)
    bench.restart()
    bench.send(step(3))
    assert bench.explain(after_s=20) == []


def test_what_cannot_explain_anything_any_more_is_forgotten() -> None:
    bench = Bench(spans_horizon_s=60)
    bench.send(step(3))
    bench.explain(after_s=10)
    bench.send(step(100))
    bench.explain(after_s=10)
    assert bench.window.recent.forgotten_ns == (101 - 60) * S
    assert bench.send([span("generate#old", 0, 5 * S, worker="generator-0")]) == 1


def test_the_oldest_spans_make_room_and_are_counted() -> None:
    bench = Bench(max_spans=100)
    dropped = sum(bench.send(step(number)) for number in range(50))
    assert dropped >= 100
    assert bench.explain(everything=True)[-1].step == 49


def test_at_the_end_everything_is_explained() -> None:
    bench = Bench()
    bench.send(step(3))
    assert len(bench.explain(everything=True)) == 1


def test_a_clock_that_is_behind_does_not_hide_the_cause() -> None:
    bench = Bench()
    spans = step(100)
    sample = spans[0]
    spans[0] = replace(sample, start_ns=sample.start_ns + 20 * S, end_ns=sample.end_ns + 20 * S)
    bench.send(spans)
    (explained,) = bench.explain(after_s=10)
    assert explained.values["critical_path/trainer/train"] == pytest.approx(0.5)
    assert sum(explained.values.values()) == pytest.approx(1.0)


def test_a_step_whose_own_span_had_to_make_room_is_not_explained() -> None:
    bench = Bench(max_spans=10)
    bench.send(step(1))
    bench.send([span(f"generate#{n}", 50 * S, 50 * S + n, worker="env-0") for n in range(1, 20)])
    assert bench.explain(after_s=10) == []
    assert not bench.window.is_open


def test_nothing_is_left_to_forget_when_everything_had_to_make_room() -> None:
    bench = Bench(max_spans=1)
    bench.send([*step(1), *step(2)])
    assert bench.explain(after_s=10) == []


def test_names_of_spans_do_not_make_keys_without_end() -> None:
    bench = Bench()
    keys: set[str] = set()
    for number in range(1, 700):
        spans = step(number)
        spans[2] = replace(spans[2], phase="", name=f"request {number}")
        bench.send(spans)
        for explained in bench.explain(after_s=20):
            keys.update(explained.values)
            assert sum(explained.values.values()) == pytest.approx(1.0)
        assert bool(bench.window.crowded_role) == ("critical_path/other/other" in keys)
    assert bench.window.crowded_role == spans[2].role
    assert len(keys) <= 513


def test_spans_of_a_clock_that_is_minutes_behind_are_new_and_their_repetitions_are_not() -> None:
    bench = Bench(spans_horizon_s=60)
    bench.send(step(1000))
    bench.explain(after_s=10)
    assert bench.window.recent.forgotten_ns > 200 * S

    def of_slow_clock(number: int) -> SpanRecord:
        return span(f"generate#{number}", number * S, (number + 1) * S, worker="generator-0")

    numbers = (100, 101, 102, 101, 102, 103)
    found = [len(bench.window.recent.new_of([of_slow_clock(n)])) for n in numbers]
    assert found == [0, 1, 1, 0, 0, 1]


def test_no_more_steps_wait_than_may_be_open() -> None:
    bench = Bench(max_open_steps=5)
    dropped = sum(bench.send(step(number)) for number in range(1, 20))
    assert dropped == 14
    assert [explained.step for explained in bench.explain(after_s=10)] == [15, 16, 17, 18, 19]


def test_a_step_says_what_each_worker_took_of_it_and_did_meanwhile() -> None:
    bench = Bench()
    bench.send([*step(3, rank=0), *step(3, rank=1)])
    (explained,) = bench.explain(after_s=10)
    assert sum(explained.path.values()) == pytest.approx(1.0)
    assert {place[:2] for place in explained.path} == {
        ("generator", "generate"),
        ("trainer", "train"),
    }
    assert explained.busy == {
        ("generator", "generate", "generator-0"): 0.5,
        ("generator", "generate", "generator-1"): 0.5,
        ("trainer", "collector_wait", "trainer-0"): 0.5,
        ("trainer", "collector_wait", "trainer-1"): 0.5,
        ("trainer", "train", "trainer-0"): 0.5,
        ("trainer", "train", "trainer-1"): 0.5,
    }
    assert explained.clocks == []


def test_of_many_workers_the_busiest_are_named() -> None:
    bench = Bench()
    others = [
        span(f"generate#{n}", 3 * S, 3 * S + n * 10_000_000, worker=f"generator-{n}")
        for n in range(1, 101)
    ]
    bench.send([*step(3)[1:], *others])
    (explained,) = bench.explain(after_s=10)
    named = [worker for role, _, worker in explained.busy if role == "generator"]
    assert named == [f"generator-{n}" for n in range(100, 100 - MAX_WORKERS, -1)]


def test_a_corrected_clock_is_named_with_a_worker_of_its_host() -> None:
    bench = Bench()
    spans = step(100)
    sample = spans[0]
    spans[0] = replace(sample, start_ns=sample.start_ns + 20 * S, end_ns=sample.end_ns + 20 * S)
    bench.send(spans)
    (explained,) = bench.explain(after_s=10)
    (clock,) = explained.clocks
    assert (clock.host, clock.worker) == ("two", "generator-0")
    assert clock.ahead_ns == pytest.approx(20 * S, abs=S)


MIB = 1 << 20


def heavy(number: int, n_links: int = 30) -> SpanRecord:
    """As large as the door lets a span be, but for the number of links."""
    links = tuple(b"%024d" % (number * n_links + place) for place in range(n_links))
    name, phase = f"{number:06d}" + "n" * 1018, f"{number:06d}" + "p" * 122
    own = span(f"train#{number}", number * S, number * S + S)
    return replace(own, links=links, name=name, phase=phase, phase_class=phase[::-1])


def taken_bytes(bench: Bench) -> int:
    """What stays in memory of 60 batches of 40 such spans: 9 MiB of them."""
    gc.collect()
    tracemalloc.start()
    try:
        for batch in range(60):
            bench.send([heavy(40 * batch + number) for number in range(40)])
            bench.window.recent.take_log()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_2400_spans_of_many_links_and_long_names_take_what_the_limit_says() -> None:
    bench = Bench(max_spans_bytes=2 * MIB)
    assert taken_bytes(bench) < 2.5 * MIB


@pytest.mark.slow
def test_plain_spans_take_no_more_than_they_are_charged() -> None:
    def kept(number: int) -> SpanRecord:
        return replace(heavy(number, 1), name=f"name {number}", phase="", phase_class="")

    bench = Bench(max_spans_bytes=4 * MIB)
    gc.collect()
    tracemalloc.start()
    try:
        dropped = bench.send([kept(number) for number in range(10_000)])
        bench.window.recent.take_log()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert dropped > 2_000
    assert 2 * MIB < taken < 5 * MIB


def test_spans_that_make_room_for_bytes_are_the_oldest_and_are_counted() -> None:
    bench = Bench(max_spans_bytes=MIB)
    dropped = sum(bench.send([heavy(number)]) for number in range(400))
    assert dropped > 5
    assert bench.window.recent.forgotten_ns == dropped * S
    assert not bench.window.recent.new_of([heavy(399)])


@pytest.mark.slow
def test_spans_of_a_log_are_held_to_the_bound_as_they_are_read() -> None:
    bench = Bench(max_spans_bytes=400 * MIB)
    bench.send([heavy(number) for number in range(5000)])
    log = bench.window.recent.take_log()
    assert log is not None
    small = Bench(max_spans_bytes=4 * MIB)
    gc.collect()
    tracemalloc.start()
    try:
        dropped = small.window.recent.restore(log.body, small.settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The log holds 20 MiB; at once there are those that stay, and a part as text and as spans.
    assert dropped > 3000
    assert peak < 14 * MIB


@pytest.mark.slow
def test_making_room_costs_time_in_proportion_to_the_spans() -> None:
    def sending(n: int) -> Callable[[], None]:
        bench = Bench(max_spans=n // 4)
        spans = [replace(heavy(number, 0), name="n") for number in range(n)]

        def send() -> None:
            for place in range(0, n, 100):
                bench.send(spans[place : place + 100])

        return send

    assert cost_ratio(sending, 4_000, most=10) < 10


def test_a_run_of_spans_alone_counts_its_steps() -> None:
    bench, run = Bench(), Run()
    run.span_window = bench.window
    assert (run.step, run.has_metrics) == (None, False)
    bench.send([one for number in (1, 2, 3) for one in step(number)])
    bench.explain(after_s=10, everything=True)
    assert (run.step, run.has_metrics) == (3, True)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_step_with_slower_work_is_no_more_efficient(restarts: bool) -> None:
    """From step 31 on training takes three seconds more: the wait is a smaller part of the step."""
    bench = Bench()
    for number in range(1, 31):
        bench.send(step(number))
    before = bench.explain(after_s=10, everything=True)
    if restarts:
        bench.restart()
    for number in range(31, 34):
        spans = step(10 * number)
        slow = {one.span_id: replace(one, end_ns=one.end_ns + 3 * S) for one in spans}
        bench.send([slow[one.span_id] if one.role == "trainer" else one for one in spans
                    if "collector_wait" not in one.name])  # fmt: skip
    after = bench.explain(after_s=10, everything=True)
    key = "health/trainer/efficiency"
    assert {round(one.health[key], 2) for one in before} == {0.5}
    assert all(one.health[key] < 0.2 for one in after)


# Chosen steps


def chosen(bench: Bench) -> set[int]:
    """The steps whose own spans are in the log of those that stay, since the last call."""
    log = bench.window.chosen.take_log()
    spans = [] if log is None else [one for part in read_spans(log.body) for one in part]
    return {one.step for one in spans if one.name == "rl.loop" and one.step is not None}


def explained(bench: Bench, numbers: range, *, slow: Container[int] = ()) -> set[int]:
    """Have steps of two seconds, or of eight, explained one by one; return those that stay."""
    stay: set[int] = set()
    for number in numbers:
        begun, took = 10 * number * S, (8 if number in slow else 2) * S
        work = span(f"train#{number}", begun, begun + took)
        loop = span(f"step#{number}", begun, begun + took, step=number)
        bench.send([work, replace(loop, name="rl.loop")])
        bench.explain(after_s=20)
        stay |= chosen(bench)
    return stay


def test_steps_at_growing_distances_keep_their_spans() -> None:
    bench = Bench(spans_horizon_s=30)
    stay = explained(bench, range(1_000))
    assert len(stay) < 40
    for fault in (10, 50, 500, 999):
        assert any(fault * 0.8 <= one < fault for one in stay), fault


def test_the_first_step_that_is_far_slower_keeps_its_spans() -> None:
    bench = Bench(spans_horizon_s=30)
    stay = explained(bench, range(200), slow={118, 119})
    assert 118 in stay
    assert 119 not in stay


@pytest.mark.parametrize("role", ["trainer", ""])
def test_a_fault_keeps_a_usual_step_of_before_and_the_first_since(role: str) -> None:
    bench = Bench(spans_horizon_s=600)
    explained(bench, range(200), slow={150, *range(191, 200)})
    bench.window.found(191, role)
    before, after = sorted(chosen(bench))
    assert 180 <= before < 191
    assert after == 191


def test_what_was_chosen_is_known_after_a_restart_and_bounded() -> None:
    bench = Bench(spans_horizon_s=30)
    explained(bench, range(10))
    bench.restart()
    assert explained(bench, range(10, 12)) == {11}
    bench.window.chosen.left_bytes = 1
    assert explained(bench, range(12, 100)) == {14}


def test_a_step_of_which_a_part_is_kept_with_its_neighbour_is_not_taken_for_whole() -> None:
    bench = Bench(spans_horizon_s=600)
    bench.send([*step(20, late_s=0.2), *step(21)])
    bench.explain(after_s=20)
    assert chosen(bench) == {20}
