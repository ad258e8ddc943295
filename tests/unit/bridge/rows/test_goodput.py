"""Goodput: each second of the allocation is productive, overhead, idle or wasted. ADR 23."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import looking, read_keys
from otel_rl.bridge.journal.state import StateRefused, decode, encode
from otel_rl.bridge.rows.goodput import Goodput, Place, Places
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.bridge.rows.steps.step_axis import ValueTimeline
from otel_rl.cli.main import main
from otel_rl.records import (
    Attempt,
    Batch,
    Covered,
    Decoded,
    ExperimentKey,
    Export,
    Measurements,
    Series,
    Signal,
)
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Reduction, Tier
from otel_rl.view.pages import Pages
from otel_rl.view.questions import Question
from tests.journals.small_run import Life
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.unit.bridge.rows.fleet import PARTS, T0, Fleet, S, ns, worker

TRAINER, GENERATOR = worker("trainer"), worker("generator")


def parts(of: object, prefix: str = "goodput") -> tuple[float, ...]:
    """Productive, overhead, idle and wasted seconds."""
    assert isinstance(of, dict)
    return tuple(of[f"{prefix}/{part}"] for part in PARTS)


def measured(of: Goodput, phases: list[float], place: str = "0") -> None:
    """Phases of a worker, one after the other, with nothing between."""
    group = Group(0, "x", "trainer", "rl.phase.duration", (("rl.phase", "train"),), Reduction.MEAN)
    stream = Stream(0, WorkerState("trainer", place), group)
    end_ns = ns(0)
    for seconds in phases:
        end_ns += round(seconds * S)
        of.measured(stream, [seconds], [end_ns])


@pytest.mark.parametrize("restarts", [False, True])
def test_work_that_becomes_slower_is_never_better(restarts: bool) -> None:
    """Of 100 steps of a second, 60 take the given time: each second more is lost."""
    ratios = []
    for slow_s in (1.0, 1.5, 4.0, 20.0):
        goodput = Goodput()
        for part in ([1.0] * 40, [slow_s] * 60):
            measured(goodput, part)
            goodput = decode(encode(goodput), Goodput) if restarts else goodput
        spent = goodput.spent()[""]
        ratios.append(spent.productive_s / (spent.productive_s + spent.wasted_s))
    assert ratios == [pytest.approx(100 / (40 + 60 * slow_s)) for slow_s in (1.0, 1.5, 4.0, 20.0)]


def test_a_few_short_times_at_the_start_are_no_pace_of_a_long_run() -> None:
    goodput = Goodput()
    measured(goodput, [0.001] * 20 + [1.0] * 10_000)
    spent = goodput.spent()[""]
    assert spent.productive_s / spent.wall_s > 0.8


@pytest.mark.parametrize("steps", [100, 500, 1_200, 5_000, 50_000])
@pytest.mark.parametrize(
    "drawn",
    [
        lambda chance: chance.uniform(0.8, 1.2),
        lambda chance: chance.lognormvariate(0, 0.5),
        lambda chance: chance.expovariate(1),
    ],
    ids=["a little", "as lengths of answers do", "exponentially"],
)
def test_times_that_only_scatter_have_lost_next_to_nothing(
    drawn: Callable[[random.Random], float], steps: int
) -> None:
    chance, goodput = random.Random(steps), Goodput()
    measured(goodput, [drawn(chance) for _ in range(steps)])
    spent = goodput.spent()[""]
    assert spent.productive_s / spent.wall_s > 0.9


def approx(*values: float) -> object:
    return pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize("restarts", [False, True])
def test_each_class_of_phases_has_its_part(restarts: bool) -> None:
    fleet = Fleet(restarts=restarts)
    fleet.export(TRAINER, 0.0)
    phases = {
        "train": 4.0,
        "weight_sync": 1.0,
        "weight_push": 0.5,  # a part of it
        "checkpoint": 1.0,
        "collector_wait": 2.0,
        "sync_coordination": 0.5,
        "unaccounted": 1.5,
    }
    fleet.export(TRAINER, 10.0, phases, step=1)
    fleet.export(TRAINER, 12.0)
    assert parts(fleet.end(13.0)) == approx(4, 2, 6, 0)


def test_a_phase_that_is_not_registered_is_what_its_sender_says() -> None:
    fleet = Fleet()
    phases = {"tool_call": 1.0, "plan": 2.0, "evaluate": 3.0, "queue_wait": 4.0}
    fleet.export(TRAINER, 0.0)
    fleet.export(TRAINER, 10.0, phases, step=1, classes={"tool_call": "io"})
    assert parts(fleet.end(11.0)) == approx(2, 4, 4, 0)


def test_a_process_before_its_first_phase_is_overhead() -> None:
    fleet = Fleet()
    fleet.export(TRAINER, 0.0)
    fleet.export(TRAINER, 20.0)
    fleet.export(TRAINER, 30.0, {"train": 4.0, "collector_wait": 1.0}, step=1)
    assert parts(fleet.end(31.0)) == approx(4, 25, 1, 0)


def test_a_place_begins_with_the_first_phase_if_no_export_came_before() -> None:
    fleet = Fleet()
    fleet.export(GENERATOR, 30.0, {"generate": 20.0})
    assert parts(fleet.end(31.0)) == approx(20, 0, 0, 0)


def test_a_place_begins_with_the_first_step_if_no_export_came_before() -> None:
    fleet = Fleet()
    step = Measurements(Series(TRAINER, "rl.iteration.duration", "s"), [ns(30.0)], [20.0], [1])
    fleet.add(Decoded([step], []), 30.0)
    fleet.export(TRAINER, 30.0, {"train": 12.0, "weight_sync": 2.0}, step=1)
    assert parts(fleet.end(31.0)) == approx(12, 2, 6, 0)


def test_waiting_after_a_first_export_with_phases_is_no_start_up() -> None:
    fleet = Fleet()
    fleet.export(GENERATOR, 10.0, {"generate": 10.0})
    fleet.export(GENERATOR, 30.0, {"generate": 5.0})
    fleet.export(GENERATOR, 31.0)
    assert parts(fleet.end(32.0)) == approx(15, 0, 16, 0)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_gap_before_a_replacement_is_idle(restarts: bool) -> None:
    fleet = Fleet(restarts=restarts)
    fleet.export(GENERATOR, 0.0)
    fleet.export(GENERATOR, 10.0, {"generate": 10.0})
    again = worker("generator", life="b")
    fleet.export(again, 100.0, {"model_load": 5.0})
    fleet.export(again, 110.0, {"generate": 10.0})
    assert parts(fleet.end(111.0)) == approx(20, 5, 85, 0)


def test_a_killed_worker_is_held_until_the_last_sign_of_its_role() -> None:
    fleet = Fleet()
    other = worker("generator", 1, count=2)
    for one in (GENERATOR, other):
        fleet.export(one, 10.0, {"generate": 10.0})
    fleet.export(other, 20.0, {"generate": 10.0})
    assert parts(fleet.end(21.0)) == approx(30, 0, 10, 0)


@pytest.mark.parametrize("failed", [False, True])
def test_a_worker_that_has_ended_in_order_is_held_no_longer(failed: bool) -> None:
    fleet = Fleet()
    other = worker("generator", 1, count=2)
    for one in (GENERATOR, other):
        fleet.export(one, 10.0, {"generate": 10.0})
    fleet.leave(GENERATOR, 10.0, failed=failed)
    fleet.export(other, 20.0, {"generate": 10.0})
    assert parts(fleet.end(21.0)) == approx(30, 0, 10 if failed else 0, 0)


def test_a_process_without_an_index_has_its_own_place() -> None:
    fleet = Fleet()
    for life, begun_s in (("a", 0.0), ("b", 100.0)):
        one = worker("generator", None, life=life)
        fleet.export(one, begun_s)
        fleet.export(one, begun_s + 10, {"generate": 10.0})
    assert parts(fleet.end(111.0)) == approx(20, 0, 0, 0)


def test_threads_are_at_most_the_time_of_their_process() -> None:
    fleet = Fleet()
    fleet.export(worker("reward"), 0.0)
    threads = {"reward": 10.0, "env_step": 10.0, "reference": 10.0, "replay": 10.0}
    fleet.export(worker("reward"), 10.0, threads)
    assert parts(fleet.end(11.0)) == approx(7.5, 2.5, 0, 0)


def test_a_role_without_phases_of_work_has_no_goodput() -> None:
    fleet = Fleet()
    buffer = worker("replay_buffer")
    # Such as a framework's that logs its waits and not its work.
    others = {"unaccounted": 1.0, "collector_wait": 2.0, "weight_sync": 3.0}
    fleet.export(buffer, 0.0, others, step=1)
    fleet.export(buffer, 10.0, counted=[("rl.replay_buffer.writes", 5, "")])
    assert fleet.end(11.0) == {}


def test_a_run_of_one_role_with_phases_has_no_keys_of_the_role() -> None:
    fleet = Fleet()
    fleet.export(worker("replay_buffer"), 0.0)
    fleet.export(TRAINER, 10.0, {"train": 10.0}, step=1)
    assert set(fleet.end(11.0)) == {f"goodput/{part}" for part in PARTS}


def test_the_run_is_the_sum_of_its_roles() -> None:
    fleet = Fleet()
    fleet.export(TRAINER, 10.0, {"train": 6.0, "collector_wait": 4.0}, step=1)
    fleet.export(GENERATOR, 10.0, {"generate": 8.0, "weight_sync": 2.0})
    found = fleet.end(11.0)
    # The longest phase of each is the first sign of its life.
    assert parts(found, "goodput/trainer") == approx(6, 0, 0, 0)
    assert parts(found, "goodput/generator") == approx(6.4, 1.6, 0, 0)
    assert parts(found) == approx(12.4, 1.6, 0, 0)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e12])
def test_a_phase_of_no_length_is_left_out(seconds: float) -> None:
    fleet = Fleet()
    fleet.export(TRAINER, 0.0)
    fleet.export(TRAINER, 10.0, {"train": 10.0}, step=1)
    fleet.export(TRAINER, 20.0, {"train": seconds}, step=2)
    assert parts(fleet.end(21.0)) == approx(10, 0, 10, 0)


def test_what_a_stock_sdk_repeats_in_every_export_is_no_time() -> None:
    """A gauge without a step: its last value comes again, at the time of the export."""
    fleet = Fleet()
    for at_s in (10.0, 20.0, 30.0):
        series = Series(GENERATOR, "rl.phase.duration", "s", (("rl.phase", "generate"),))
        covers = Covered(0, ns(at_s))
        last = Measurements(series, [ns(at_s)], [5.0], [None], covers)
        fleet.add(Decoded([last], [Export(GENERATOR, ns(at_s))]), at_s)
    assert fleet.end(31.0) == {}


class TestWaste:
    @pytest.mark.parametrize("restarts", [False, True])
    def test_steps_that_are_repeated_were_wasted(self, restarts: bool) -> None:
        """Steps 1 to 50, a crash, and 31 to 60: 20 steps of 10 s of both roles are wasted."""
        fleet = Fleet(restarts=restarts)
        at_s = 0.0
        for life, steps in (("a", range(1, 51)), ("b", range(31, 61))):
            trainer = worker("trainer", life=life)
            for step in steps:
                at_s += 10
                phases = {"train": 6.0, "weight_sync": 1.0, "collector_wait": 3.0}
                fleet.export(trainer, at_s, phases, step=step)
                fleet.export(GENERATOR, at_s - 1, {"generate": 9.0})
            at_s += 100
        assert [one.first_step for one in fleet.aligner.attempts] == [31]
        found = fleet.end(at_s)
        assert parts(found, "goodput/trainer") == approx(60 * 6, 80, 80 * 3 - 4 + 100, 20 * 6)
        generator = parts(found, "goodput/generator")
        assert generator[3] == pytest.approx(20 * 9, abs=9)

    def test_evicted_samples_waste_their_share_of_generating_and_scoring(self) -> None:
        fleet = Fleet()
        reward, buffer = worker("reward"), worker("replay_buffer")
        for at_s in (0.0, 10.0):
            phases = {"generate": 8.0} if at_s else None
            fleet.export(GENERATOR, at_s, phases, counted=[("rl.sample.samples", 50 * at_s, "")])
            fleet.export(reward, at_s, {"reward": 4.0} if at_s else None)
            fleet.export(TRAINER, at_s, {"train": 5.0} if at_s else None, step=1 if at_s else None)
            dropped = [("rl.replay_buffer.evictions", 5 * at_s, "")]
            dropped += [("rl.sample.dropped", 2 * at_s, "")]  # the same ones, counted elsewhere
            fleet.export(buffer, at_s, counted=dropped)
        found = fleet.end(11.0)
        assert parts(found, "goodput/generator") == approx(7.2, 2, 0, 0.8)
        assert parts(found, "goodput/reward") == approx(3.6, 6, 0, 0.4)
        assert parts(found, "goodput/trainer") == approx(5, 5, 0, 0)

    def test_aborted_requests_waste_their_share_of_generating(self) -> None:
        fleet = Fleet()
        for at_s in (0.0, 10.0):
            counted = [
                ("rl.generator.requests", 7 * at_s, "success"),
                ("rl.generator.requests", 2 * at_s, "cancelled"),
                ("rl.generator.requests", 1 * at_s, "timeout"),
            ]
            phases = {"generate": 8.0, "reward": 2.0} if at_s else None
            fleet.export(GENERATOR, at_s, phases, counted=counted)
        assert parts(fleet.end(11.0)) == approx(7.6, 0, 0, 2.4)

    def test_more_evictions_than_samples_waste_no_more_than_all(self) -> None:
        fleet = Fleet()
        for at_s in (0.0, 10.0):
            counted = [("rl.sample.samples", at_s, ""), ("rl.sample.dropped", 3 * at_s, "")]
            phases = {"generate": 5.0, "train": 3.0} if at_s else None
            fleet.export(GENERATOR, at_s, phases, counted=counted)
        assert parts(fleet.end(11.0)) == approx(3, 2, 0, 5)

    def test_each_attempt_wastes_what_it_repeats_also_if_several_are_known_at_once(self) -> None:
        """Steps 1 to 50, 41 to 60, and 21 to 30, of one second each."""
        goodput, steps, at_ns = Goodput(), ValueTimeline(), T0
        phase = (("rl.phase", "train"),)
        group = Group(0, "", "trainer", "rl.phase.duration", phase, Reduction.MEAN)
        stream = Stream(0, WorkerState("trainer", "0"), group)
        attempts: list[Attempt] = []
        for number, made in enumerate((range(1, 51), range(41, 61), range(21, 31)), 1):
            for step in made:
                at_ns += S
                goodput.measured(stream, [1.0], [at_ns])
                steps.observe([(at_ns, step)])
            attempts.append(Attempt(number + 1, [41, 21, 0][number - 1], -1, at_ns + S // 2))
        goodput.follow(attempts[:2], steps)
        # 41 to 50 of the first; 21 to 40 of the first, and all of the second.
        assert goodput.spent()["trainer"] == approx(80 - 50, 0, 0, 10 + 20 + 20)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_run_with_everything_that_can_go_wrong_adds_up(restarts: bool) -> None:
    """A crash and a resume, a killed generator, evicted samples, aborted requests."""
    fleet = Fleet(restarts=restarts)
    generators = [worker("generator", index, count=2) for index in range(2)]
    buffer, at_s = worker("replay_buffer"), 0.0
    for one in (worker("trainer", life="a"), *generators, buffer):
        fleet.export(one, at_s)
    for life, steps in (("a", range(1, 31)), ("b", range(21, 41))):
        for step in steps:
            at_s += 10
            phases = {"train": 5.0, "weight_sync": 1.0, "collector_wait": 4.0}
            fleet.export(worker("trainer", life=life), at_s, phases, step=step)
            for one in generators if at_s != 100 else generators[1:]:
                outcome = "cancelled" if step % 4 == 0 else "success"
                made = [("rl.sample.samples", 8, ""), ("rl.generator.requests", 2, outcome)]
                fleet.export(one, at_s - 1, {"generate": 9.0, "idle": 1.0}, counted=made)
            fleet.export(buffer, at_s, counted=[("rl.replay_buffer.evictions", 1, "")])
        at_s += 60
    found = fleet.end(at_s)
    assert sum(parts(found, "goodput/trainer")) == pytest.approx(560)
    assert sum(parts(found, "goodput/generator")) == pytest.approx(2 * 559)
    assert sum(parts(found)) == pytest.approx(560 + 2 * 559)
    assert parts(found, "goodput/trainer") == approx(200, 50, 260, 50)
    productive, overhead, idle, wasted = parts(found, "goodput/generator")
    assert (overhead, idle) == approx(0, 2 * 559 - 99 * 9)
    # From the report of step 21 to the crash: nine rounds of each.
    rolled_back, samples, requests = 2 * 9 * 9, 50 / 792, 48 / 198
    kept = 99 * 9 - rolled_back
    thrown_away = 1 - (1 - samples) * (1 - requests)
    assert wasted == pytest.approx(rolled_back + kept * thrown_away)
    assert productive + wasted == pytest.approx(99 * 9)


class TestRows:
    def test_values_are_in_a_row_every_ten_seconds_and_at_the_end(self) -> None:
        fleet = Fleet()
        for step in range(1, 31):
            fleet.export(TRAINER, float(step), {"train": 0.5, "collector_wait": 0.5}, step=step)
        fleet.look(33.0, everything=True)
        times = [row.time_ns for row in fleet.rows if "goodput/ratio" in row.values]
        assert 3 <= len(times) <= 5

    def test_the_last_row_of_a_run_has_the_last_values(self) -> None:
        fleet = Fleet()
        for step in range(1, 4):
            fleet.export(TRAINER, float(step), {"train": 1.0}, step=step)
        fleet.leave(TRAINER, 3.5)
        fleet.look(20.0)
        (row,) = [row for row in fleet.rows if row.values.get("goodput/productive") == 3.0]
        assert row.values["goodput/ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 5e303])
@pytest.mark.parametrize("duration", ["reported_s", "productive_s", "overhead_s"])
def test_a_state_with_durations_that_are_not_finite_is_refused(
    seconds: float, duration: str
) -> None:
    """A start-up of that length would fail in each later round."""
    place = Place(T0)
    setattr(place, duration, seconds)
    state = encode(places := Places())
    places.of["0"] = place
    assert decode(state, Places) == Places()
    with pytest.raises(StateRefused):
        decode(encode(places), Places)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 5e303])
def test_a_state_with_work_that_is_not_finite_is_refused(seconds: float) -> None:
    fleet = Fleet()
    fleet.export(TRAINER, 10.0, {"train": 10.0}, step=1)
    goodput = fleet.aligner.intake.goodput
    assert encode(decode(encode(goodput), Goodput)) == encode(goodput)
    goodput._roles["trainer"].worked_s[0] = seconds
    with pytest.raises(StateRefused):
        decode(encode(goodput), Goodput)


# Goodput as people and programs read it from a journal, whatever bridges have come and gone.

RUN = ExperimentKey("paid", "t")

SPENT = {"productive_s": 40.0, "overhead_s": 15.0, "idle_s": 125.0, "wasted_s": 20.0}
"""Two trainers: two steps of 20 s, a crash, 40 s without them, and the second step again."""

WORDS = "goodput 20%: productive 40 s, overhead 15 s, idle 2.08 min, wasted 20 s of worker time"


def step(rank: int, life: str, number: int, at_s: float) -> Batch:
    """The phases of a step that ends at a time."""
    points = []
    for phase, seconds in (("train", 10.0), ("weight_sync", 2.5), ("idle", 7.5)):
        one = point(seconds, T0 + round(at_s * S))
        one.attributes.extend(key_values({"rl.phase": phase, "rl.loop.iteration": number}))
        points.append(one)
    whole = point(20.0, T0 + round(at_s * S))
    whole.attributes.extend(key_values({"rl.loop.iteration": number}))
    resource: Attributes = {
        "rl.experiment.name": RUN.experiment,
        "rl.experiment.trial": RUN.trial,
        "rl.worker.role": "trainer",
        "rl.worker.index": rank,
        "rl.worker.count": 2,
        "service.instance.id": f"{life}-{rank}",
    }
    request = metrics_request(
        gauge(*points, name="rl.phase.duration"),
        gauge(whole, name="rl.iteration.duration"),
        resource=resource,
    )
    return Batch(RUN, Signal.METRICS, request.SerializeToString(), T0 + round(at_s * S))


@pytest.fixture(params=["one bridge", "a bridge for each step"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    life = Life(tmp_path)
    made = [("a", 1, 20.0), ("a", 2, 40.0), ("b", 2, 100.0)]
    for process, number, at_s in made:
        if request.param != "one bridge":
            life.processor.finish(T0 + round(at_s * S))
            life.journal.close()
            life = Life(tmp_path)
        for rank in range(2):
            life.take(step(rank, process, number, at_s), now_ns=T0 + round(at_s * S))
    life.processor.finish(T0 + 110 * S)
    life.journal.close()
    return tmp_path


def test_the_list_of_runs_has_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", str(data)]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["spent"][""] == SPENT
    assert run["goodput"] == 0.2
    assert main(["runs", str(data)]) == 0
    assert "  20%  " in capsys.readouterr().out


def test_a_diagnosis_ends_with_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--data", str(data)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == WORDS
    assert main(["diagnose", "--json", "--data", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["goodput"] == {"": SPENT}


def test_the_page_has_it(data: Path) -> None:
    pages = Pages(BridgeSettings(data=data), clock_ns=lambda: T0 + 110 * S)
    path = f"runs/{run_id(RUN.experiment, RUN.trial)}/overview"
    while True:
        answer = pages.answer(Question(path, {}))
        body = gzip.decompress(answer.body) if answer.encoding else answer.body
        found = json.loads(body)
        if found["read"] == 1:
            break
    assert found["goodput"] == {"words": WORDS, "spent": {"": SPENT}}
    (panel,) = [
        panel
        for section in found["sections"]
        if section["title"] == "Throughput"
        for panel in section["panels"]
        if panel["stacked"]
    ]
    assert panel["title"] == "Goodput, time of the workers (s)"
    pages.close()


def test_the_charts_to_keep_are_the_runs(data: Path) -> None:
    with looking(data) as connection:
        keys = read_keys(connection, run_id(*RUN))
    specs = {spec.key: spec for spec in keys if spec.key.startswith("goodput/")}
    assert {spec.axis for spec in specs.values()} == {"time"}
    assert {spec.tier for spec in specs.values()} == {Tier.BASIC}
    assert {spec.unit for spec in specs.values()} == {"s", "1"}
