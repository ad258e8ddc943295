"""From the spool to the run store: experiments take turns and fail apart."""

import contextlib
import dataclasses
import os
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.counters import Counter, Counters, Delay, Refusal, SampleDrop, StateFault, Where
from otel_rl.bridge.journal.interface import checksum
from otel_rl.bridge.journal.reader import overview, read_history
from otel_rl.bridge.journal.runs import Commit, RunStore, SavedRun
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.keys import DIAGNOSIS_ALERT, DIAGNOSIS_CAUSE, alert_text
from otel_rl.bridge.rows import run_batches, scheduler
from otel_rl.bridge.rows.messages import Finding
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.scheduler import Around, Pace, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps import step_closing
from otel_rl.diagnose.history.records import Facts
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, Decoded, ExperimentKey, Signal, Value
from otel_rl.run_id import run_id
from tests.support.otlp_requests import (
    Attributes,
    event,
    gauge,
    key_values,
    logs_request,
    metrics_request,
    point,
)
from tests.support.slow import slow_after
from tests.support.stores import Store

S = 1_000_000_000

_MOST_ROUNDS = 1_000
"""Limit of rounds at once, far above what a test needs, so that rounds without end fail soon."""
T0 = 1_700_000_000 * S
A, B = ExperimentKey("a"), ExperimentKey("b")


def batch(
    key: ExperimentKey, step: int, *, padding: int = 0, worker: str = "one", ahead_ns: int = 0
) -> Batch:
    """A measurement of one step, as a stock SDK sends it."""
    measured = point(float(step), T0 + step + ahead_ns)
    measured.attributes.extend(key_values({"rl.loop.iteration": step}))
    request = metrics_request(
        gauge(measured),
        resource={
            "rl.experiment.name": key.experiment,
            "rl.worker.role": "trainer",
            "service.instance.id": worker,
            "padding": "x" * padding,
        },
    )
    return Batch(key, Signal.METRICS, request.SerializeToString(), T0)


def broken(key: ExperimentKey) -> Batch:
    return Batch(key, Signal.METRICS, b"\xff no protobuf", T0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest step has its row in the round of its samples."""
    monkeypatch.setattr(step_closing, "_QUIET_NS", 0)


class Bench:
    """The core of a bridge, with a clock that tests move by hand."""

    def __init__(self, store: Store, settings: AlignSettings | None = None, **turns: Any) -> None:
        self._store = store
        self._settings = settings or AlignSettings(start_wait_s=0)
        # Turns and rounds have no end, unless a test says how time goes.
        self._tenant = turns.pop("tenant", lambda _: "")
        self._pace = Pace(**{"clock_s": lambda: 0.0, **turns})
        self.now_ns = T0
        self.begin()

    def begin(self) -> None:
        """As after a start."""
        self.journal = self._store.open()
        self.spool, self.run_store = Spool(self.journal), RunStore(self.journal)
        self.counters = Counters()
        self.told: list[ExperimentKey] = []
        self.drain = Scheduler(
            self.spool,
            self.run_store,
            self._settings,
            self.counters,
            around=Around(notify=self.told.append, tenant=self._tenant),
            pace=self._pace,
        )

    def restart(self) -> None:
        """As after kill -9: what is not in the journal is gone."""
        self.journal.close()
        self.begin()

    def run(self, seconds: float = 0) -> None:
        """Let time pass, then make rows until there is nothing more to do at once."""
        self.now_ns += int(seconds * S)
        rounds = count(1)
        while self.drain.round(self.now_ns):
            assert next(rounds) < _MOST_ROUNDS, "there is always more to do"

    def steps(self, key: ExperimentKey) -> list[int]:
        rows = self.run_store.rows(key, start=0, limit=10_000)
        return [row.step for row in rows if "trainer/loss" in row.values]

    def report(self, key: ExperimentKey) -> Mapping[str, float]:
        """What the run says of the bridge, as of its last row that does."""
        rows = self.run_store.rows(key, start=0, limit=10_000)
        told = [{k: v for k, v in row.values.items() if "/bridge/" in k} for row in rows]
        return next(values for values in reversed(told) if values)


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)


def test_what_comes_again_is_known_even_after_a_restart(bench: Bench) -> None:
    sent = [batch(A, step) for step in range(5)]
    bench.spool.append(sent[:3])
    bench.run()
    bench.restart()
    bench.spool.append([*sent[1:], sent[0]])
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == [0, 1, 2, 3, 4]
    assert bench.counters.value(Counter.SAMPLES_DUPLICATE) == 3
    assert bench.counters.value(Counter.SAMPLES_TAKEN) == 2


def newest_step(bench: Bench) -> int | None:
    (run,) = overview(bench.journal)
    return run.step


def test_the_newest_step_goes_on_when_the_clock_of_its_worker_is_set_back(bench: Bench) -> None:
    for step in (1, 2, 3):
        bench.spool.append([batch(A, step)])
    bench.run()
    for step in (4, 5):
        bench.spool.append([batch(A, step, ahead_ns=-3600 * S)])
    bench.run()
    assert newest_step(bench) == 5


def test_the_newest_step_goes_back_with_the_run_and_stays_after_a_restart(bench: Bench) -> None:
    for time, step in enumerate((2, 3, 4, 1)):
        bench.spool.append([batch(A, step, ahead_ns=time * S)])
    bench.run()
    assert newest_step(bench) == 1
    bench.restart()
    bench.run(seconds=60)
    assert newest_step(bench) == 1


def test_the_backlog_of_one_experiment_does_not_delay_another(bench: Bench) -> None:
    flood = [batch(A, step, padding=100_000) for step in range(150)]
    bench.spool.append(flood)
    bench.spool.append([batch(B, step) for step in range(3)])
    bench.drain.round(bench.now_ns)
    assert bench.steps(B)[:2] == [0, 1]
    assert len(bench.steps(A)) < len(flood)
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == list(range(150))


def test_of_many_runs_each_round_takes_what_there_is_time_for_and_all_tenants_have_turns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()
    commits: list[int] = []
    commit = RunStore.commit

    def noted(run_store: RunStore, some: list[Commit]) -> None:
        commits.append(len(some))
        commit(run_store, some)

    monkeypatch.setattr(RunStore, "commit", noted)
    bench = Bench(
        store,
        clock_s=lambda: next(seconds) / 100,
        tenant=lambda key: "few" if key == B else "many",
    )
    many = [ExperimentKey(f"run-{n}") for n in range(200)]
    bench.spool.append([batch(key, 0) for key in many])
    assert bench.drain.round(bench.now_ns)
    for step in range(3):
        bench.spool.append([batch(B, step)])
        assert bench.drain.round(bench.now_ns)
        assert B not in bench.spool.waiting(), "another tenant's runs are first"
    assert max(commits) <= 50
    bench.run()
    assert bench.spool.waiting() == []
    assert len(commits) >= 4


def measurements(key: ExperimentKey, measured: Sequence[tuple[int, int | None]]) -> Batch:
    """Measurements of a worker in one request: of each, the value and the step."""
    points = []
    for value, step in measured:
        points.append(point(float(value), T0 + value))
        if step is not None:
            points[-1].attributes.extend(key_values({"rl.loop.iteration": step}))
    resource = {"rl.experiment.name": key.experiment, "rl.worker.role": "trainer"}
    request = metrics_request(gauge(*points), resource=resource)
    return Batch(key, Signal.METRICS, request.SerializeToString(), T0)


def steps_in_one_batch(key: ExperimentKey, steps: Sequence[int]) -> Batch:
    return measurements(key, [(step, step) for step in steps])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many points were taken, part by part, in the order in which they were."""
    parts: list[int] = []
    add = Run.add

    def noted(aligner: Run, decoded: Decoded, **options: Any) -> None:
        parts.append(len(decoded.points))
        add(aligner, decoded, **options)

    monkeypatch.setattr(Run, "add", noted)
    return parts


def test_a_turn_ends_in_the_middle_of_a_batch_and_the_next_experiment_has_its_own(
    store: Store, taken: list[int]
) -> None:
    seconds = count()
    bench = Bench(store, part=10, clock_s=lambda: float(next(seconds)), slice_s=0.0)
    bench.spool.append([steps_in_one_batch(A, range(1_000))])
    assert bench.drain.round(bench.now_ns)  # the first turn
    assert taken == [10]
    bench.spool.append([batch(B, 1), batch(B, 2)])
    while not bench.steps(B):
        assert bench.drain.round(bench.now_ns)
    assert taken.count(10) <= 3
    bench.run(60)
    assert (bench.steps(A), bench.steps(B)) == ([*range(1_000)], [1, 2])


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[set[ExperimentKey]]:
    """The runs of each transaction, in order."""
    seen: list[set[ExperimentKey]] = []
    commit = RunStore.commit

    def noted(run_store: RunStore, some: list[Commit]) -> None:
        seen.append({one.key for one in some})
        commit(run_store, some)

    monkeypatch.setattr(RunStore, "commit", noted)
    return seen


def test_rows_of_a_run_that_keeps_up_are_in_no_transaction_of_one_that_is_far_behind(
    store: Store, transactions: list[set[ExperimentKey]]
) -> None:
    seconds = count()
    settings = AlignSettings(start_wait_s=0, max_open_steps=20)
    bench = Bench(store, settings, part=10, clock_s=lambda: next(seconds) / 1000, slice_s=0.0)
    bench.spool.append([steps_in_one_batch(A, range(1_000))])
    bench.drain.round(bench.now_ns)
    for step in range(12):
        bench.spool.append([batch(B, step)])
        bench.drain.round(bench.now_ns)
    assert A in bench.spool.waiting(), "it is behind in all these rounds"
    assert bench.steps(B) == [*range(12)]
    assert {A, B} not in transactions
    assert {A} in transactions
    bench.run(60)
    assert bench.steps(A) == [*range(1_000)]


def test_runs_that_keep_up_share_a_transaction(
    store: Store, transactions: list[set[ExperimentKey]]
) -> None:
    bench = Bench(store)
    for step in range(3):
        bench.spool.append([batch(A, step), batch(B, step)])
        bench.run()
    assert transactions == [{A, B}] * 3


def test_a_row_is_due_by_the_time_of_its_runs_turn_and_not_by_that_of_the_rounds_begin(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn of another run takes longer than the row waits."""
    passed_s = 0.0
    bench = Bench(store, clock_s=lambda: passed_s)
    for step in range(2):
        bench.spool.append([batch(A, step), batch(B, step)])
        bench.run()
    monkeypatch.setattr(step_closing, "_QUIET_NS", 3 * S // 10)
    bench.spool.append([batch(B, 2)])
    bench.run()
    assert bench.steps(B) == [0, 1]
    add = Run.add

    def slow(aligner: Run, decoded: Decoded, **options: Any) -> None:
        nonlocal passed_s
        passed_s += 0.4
        add(aligner, decoded, **options)

    monkeypatch.setattr(Run, "add", slow)
    bench.spool.append([batch(A, 2)])
    bench.drain.round(bench.now_ns)
    assert bench.steps(B) == [0, 1, 2]


PART_S = 0.03
"""Of a part of a burst, in the test's own time: a thousand points on a machine that is busy."""


@pytest.mark.parametrize("arrives", slow_after(3, [1, 8, 32, 9, 31, 33, 64, 65, 100]))
def test_a_row_of_another_experiment_waits_for_a_second_of_a_burst_at_most(
    store: Store, monkeypatch: pytest.MonkeyPatch, arrives: int
) -> None:
    taken = 0
    bench = Bench(store, part=10, clock_s=lambda: PART_S * taken)
    add = Run.add

    def noted(aligner: Run, decoded: Decoded, **options: Any) -> None:
        nonlocal taken
        add(aligner, decoded, **options)
        is_of_burst = len(decoded.points) == 10
        taken += is_of_burst
        if is_of_burst and taken == arrives:
            bench.spool.append([batch(B, 0), batch(B, 1)])

    monkeypatch.setattr(Run, "add", noted)
    bench.spool.append([steps_in_one_batch(A, range(2_000))])
    while taken < arrives or B in bench.spool.waiting():
        assert bench.drain.round(bench.now_ns)
    assert bench.steps(B)
    assert taken - arrives <= 1.0 / PART_S
    assert A in bench.spool.waiting()


@pytest.mark.parametrize("rounds", [1, 3, 7, 12])
def test_a_batch_that_was_cut_goes_on_where_it_was_after_a_restart(
    store: Store, taken: list[int], rounds: int
) -> None:
    settings = AlignSettings(start_wait_s=0, max_open_steps=20)
    bench = Bench(store, settings, clock_s=lambda: 0.0, slice_s=0.0, part=10)
    bench.spool.append([steps_in_one_batch(A, range(100))])
    for _ in range(rounds):
        bench.drain.round(bench.now_ns)
    first, before = len(bench.steps(A)), len(taken)
    bench.restart()
    bench.spool.append([steps_in_one_batch(A, range(100, 130))])
    bench.run(60)
    assert bench.steps(A) == [*range(130)]
    assert bench.counters.value(Counter.SAMPLES_DUPLICATE) == 0
    # What has rows was not taken again, nor anything that was before it in the batch.
    assert sum(taken[before:]) == 130 - (first + 20 if 0 < first < 100 else first)


def test_what_is_said_of_a_whole_batch_is_heard_at_its_end(store: Store) -> None:
    bench = Bench(store, clock_s=lambda: 0.0, slice_s=0.0, part=10)
    bench.spool.append([steps_in_one_batch(A, [*range(50), *range(50)])])
    for _ in range(8):
        assert bench.drain.round(bench.now_ns)
        assert not bench.steps(A)  # no step is complete before the end
    bench.run(60)
    assert bench.steps(A) == [*range(50)]


def test_the_last_row_of_a_bridge_that_ends_is_delayed_by_all_rounds_before_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit takes a second."""
    commits, delays_s, passed_s = 0, list[float](), list[float]()
    commit = RunStore.commit

    def slow(run_store: RunStore, some: list[Commit]) -> None:
        nonlocal commits
        commit(run_store, some)
        commits += 1

    monkeypatch.setattr(RunStore, "commit", slow)
    bench = Bench(store, clock_s=lambda: float(commits), slice_s=0.0, part=10)

    def told(_delay: Delay, seconds: float, _attributes: Mapping[str, str]) -> None:
        delays_s.append(seconds)
        passed_s.append(float(commits))

    bench.counters.on_delay = told
    for step in range(5):
        bench.spool.append([batch(A, step)])
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == [*range(5)]
    assert max(passed_s) > 1
    assert delays_s == passed_s


OF_WORKER = "workers/trainer/0/loss"


def in_one_step(key: ExperimentKey, values: Sequence[int]) -> Batch:
    return measurements(key, [(value, 1) for value in values])


def in_one_window(key: ExperimentKey, values: Sequence[int]) -> Batch:
    return measurements(key, [(value, None) for value in values])


@pytest.mark.parametrize("size", slow_after(1, [300, 30, 1_000]))
@pytest.mark.parametrize("flood", [steps_in_one_batch, in_one_step, in_one_window])
def test_a_row_of_another_experiment_waits_for_a_part_of_a_floods_rows(
    flood: Callable[[ExperimentKey, Sequence[int]], Batch], size: int, store: Store
) -> None:
    settings = AlignSettings(start_wait_s=0, per_worker=True)
    bench = Bench(store, settings, clock_s=lambda: 0.0, slice_s=0.0, part=10)
    bench.spool.append([batch(B, 0)])
    bench.run()
    bench.spool.append([flood(A, range(size))])
    made: list[float] = []
    for step in count(1):
        bench.spool.append([batch(B, step)])
        bench.drain.round(bench.now_ns)
        assert bench.steps(B) == [*range(step + 1)]
        before = len(made)
        rows = bench.run_store.rows(A, start=0, limit=10_000)
        made = [row.values[OF_WORKER] for row in rows if OF_WORKER in row.values]
        assert len(made) - before <= 10
        if len(made) >= size:
            break
        bench.now_ns += S
    assert made == [*range(size)]


def test_no_more_is_taken_while_rows_are_left(store: Store, taken: list[int]) -> None:
    bench = Bench(store, clock_s=lambda: 0.0, slice_s=0.0, part=10)
    bench.spool.append([steps_in_one_batch(A, range(n, n + 100)) for n in range(0, 1_000, 100)])
    while bench.drain.round(bench.now_ns):
        assert sum(taken) - len(bench.steps(A)) <= 110
    assert bench.steps(A) == [*range(1_000)]


def test_two_large_batches_are_in_the_middle_at_a_time(
    store: Store, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_batches, "_LARGE_BYTES", 1_000)
    bench = Bench(store, clock_s=lambda: 0.0, slice_s=0.0, part=10)
    keys = [ExperimentKey(f"large-{n}") for n in range(4)]
    bench.spool.append([steps_in_one_batch(key, range(100)) for key in keys])
    bench.spool.append([batch(B, 1)])
    bench.drain.round(bench.now_ns)
    assert taken == [10, 10, 1]
    bench.run(60)
    assert all(bench.steps(key) == [*range(100)] for key in keys)


@pytest.fixture
def sparing(store: Store) -> Bench:
    """A bridge that commits every second; steps stay open, since the second worker is behind."""
    bench = Bench(store, AlignSettings(start_wait_s=0), commit_every_s=1.0)
    bench.spool.append([batch(A, 0), batch(A, 0, worker="two")])
    bench.run()
    bench.run(1.0)
    assert bench.spool.pending() == 0
    return bench


def test_batches_without_a_row_are_committed_after_a_while(sparing: Bench) -> None:
    for step in range(1, 4):
        sparing.spool.append([batch(A, step)])
        sparing.run(0.25)
        assert sparing.spool.pending() == step
    sparing.run(0.74)
    assert sparing.spool.pending() == 0
    assert sparing.counters.value(Counter.SAMPLES_TAKEN) == 5
    assert sparing.counters.value(Counter.SAMPLES_DUPLICATE) == 0
    sparing.drain.finish(sparing.now_ns)
    assert sparing.steps(A) == [0, 1, 2, 3]


def test_many_batches_without_a_row_are_committed_at_once(
    sparing: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_UNCOMMITTED_BYTES", 10_000)
    sparing.spool.append([batch(A, 1, padding=4_500), batch(A, 2, padding=4_500)])
    sparing.run()
    assert sparing.spool.pending() == 2
    sparing.spool.append([batch(A, 3, padding=4_500)])
    sparing.run()
    assert sparing.spool.pending() == 0


def test_in_a_backlog_a_large_state_is_not_written_for_every_few_batches(
    sparing: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparing.spool.append([steps_in_one_batch(A, range(1, 300))])
    sparing.run(1.0)
    monkeypatch.setattr(scheduler, "_READ_BYTES", 1)  # so more waits after each round
    waiting = [batch(A, step) for step in range(300, 340)]
    sparing.spool.append(waiting)
    states = states_written(sparing, monkeypatch)
    # Each after as many bytes as the last one has, and one when nothing waits.
    most = sum(len(one.payload) for one in waiting) / min(map(len, states)) + 2
    assert 1 <= len(states) <= most < len(waiting) / 4
    sparing.run(1.0)
    assert sparing.spool.pending() == 0
    sparing.drain.finish(sparing.now_ns)
    assert sparing.steps(A) == [*range(340)]
    assert sparing.counters.value(Counter.SAMPLES_DUPLICATE) == 0


def states_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Sequence[bytes]:
    """The states of a backlog's commits, where each round takes seconds."""
    states: list[bytes] = []
    commit = bench.run_store.commit

    def noted(commits: Sequence[Commit]) -> None:
        states.extend(one.state for one in commits)
        commit(commits)

    with monkeypatch.context() as patched:
        patched.setattr(bench.run_store, "commit", noted)
        while bench.drain.round(bench.now_ns):
            bench.now_ns += 2 * S
    return states


def test_a_row_takes_uncommitted_batches_with_it(sparing: Bench) -> None:
    sparing.spool.append([batch(A, 1)])
    sparing.run(0.1)
    assert sparing.spool.pending() == 1
    sparing.drain.add_finding(A, SLOW)
    sparing.run(0.1)
    assert sparing.spool.pending() == 0


def test_uncommitted_batches_are_made_into_rows_once_after_a_restart(sparing: Bench) -> None:
    sparing.spool.append([batch(A, 1), batch(A, 2)])
    sparing.run()
    assert sparing.spool.pending() == 2
    sparing.restart()
    sparing.spool.append([batch(A, 3)])
    sparing.drain.finish(sparing.now_ns)
    assert sparing.steps(A) == [0, 1, 2, 3]
    assert sparing.counters.value(Counter.SAMPLES_TAKEN) == 3
    assert sparing.counters.value(Counter.SAMPLES_DUPLICATE) == 0
    assert sparing.spool.pending() == 0


def test_a_stopping_bridge_commits_what_it_has_taken(sparing: Bench) -> None:
    sparing.drain.finish(sparing.now_ns)
    sparing.spool.append([Batch(A, Signal.METRICS, b"\x78\x01", T0)])  # without a point
    sparing.run()
    assert sparing.spool.pending() == 1
    sparing.drain.finish(sparing.now_ns)
    assert sparing.spool.pending() == 0


def test_a_bad_batch_behind_uncommitted_ones_is_set_aside_alone(sparing: Bench) -> None:
    sparing.spool.append([batch(A, 1)])
    sparing.run()
    sparing.spool.append([broken(A), batch(A, 2)])
    sparing.run()
    assert sparing.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE) == 1
    sparing.drain.finish(sparing.now_ns)
    assert sparing.steps(A) == [0, 1, 2]
    assert sparing.spool.pending() == 0


class Turn:
    """What a bridge believes to own, which ends when a test says so."""

    def __init__(self, epoch: int) -> None:
        self.number: int | None = epoch

    def epoch(self, key: ExperimentKey, /) -> int | None:
        return self.number


def test_a_round_that_ends_after_its_turn_leaves_nothing_and_the_next_owner_goes_on(
    bench: Bench,
) -> None:
    bench.spool.append([batch(A, 0), batch(A, 1)])
    bench.journal.write(lambda c: c.execute("UPDATE runs SET epoch = 1"))
    asleep, awake = Turn(1), Turn(2)

    def sleep_through_the_lease(_: ExperimentKey) -> dict[str, float]:
        bench.journal.write(lambda c: c.execute("UPDATE runs SET epoch = 2"))
        return {}

    def drain(turn: Turn, gauges: Callable[[ExperimentKey], dict[str, float]]) -> Scheduler:
        run_store = RunStore(bench.journal, owners=turn)
        return Scheduler(
            bench.spool,
            run_store,
            AlignSettings(start_wait_s=0),
            bench.counters,
            around=Around(notify=bench.told.append, gauges=gauges, owners=turn),
            pace=Pace(clock_s=lambda: 0.0),
        )

    stale = drain(asleep, sleep_through_the_lease)
    stale.round(bench.now_ns)
    assert (bench.told, bench.spool.pending()) == ([], 2)
    asleep.number = None
    stale.round(bench.now_ns)
    drain(awake, lambda _: {}).finish(bench.now_ns)
    assert bench.steps(A) == [0, 1]
    assert bench.counters.value(Counter.SAMPLES_TAKEN) == 2


def test_a_run_of_another_bridge_is_left_alone(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    owners = Turn(1)
    owners.number = None
    drain = Scheduler(
        bench.spool,
        RunStore(bench.journal, owners=owners),
        AlignSettings(start_wait_s=0),
        bench.counters,
        around=Around(notify=bench.told.append, owners=owners),
        pace=Pace(clock_s=lambda: 0.0),
    )
    drain.round(bench.now_ns)
    assert (bench.told, bench.spool.pending()) == ([], 1)


def test_a_bad_batch_is_set_aside_and_takes_nothing_else_with_it(bench: Bench) -> None:
    bench.spool.append([batch(A, 0), batch(B, 0), batch(A, 1), broken(A), batch(A, 2)])
    bench.drain.finish(bench.now_ns)
    assert (bench.steps(A), bench.steps(B)) == ([0, 1, 2], [0])
    assert bench.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE) == 1
    assert bench.spool.pending() == 0


def test_a_batch_that_fails_once_is_taken_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0)])
    add, failures = Run.add, iter([MemoryError()])

    def fails_once(run: Run, decoded: Decoded, **options: Any) -> None:
        for failure in failures:
            raise failure
        add(run, decoded, **options)

    monkeypatch.setattr(Run, "add", fails_once)
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == [0]
    assert bench.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE) == 0


def test_a_damaged_batch_is_set_aside_and_takes_nothing_else_with_it(bench: Bench) -> None:
    bench.spool.append([batch(A, 0), batch(A, 1), batch(A, 2)])
    bench.journal.write(
        lambda c: c.execute("UPDATE batches SET payload = SUBSTR(payload, 2) WHERE position = 2")
    )
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == [0, 2]
    assert bench.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.DAMAGED) == 1


def test_a_damaged_state_loses_no_row_number_and_harms_no_other_run(bench: Bench) -> None:
    for key in (A, B):
        bench.spool.append([batch(key, step) for step in range(3)])
    bench.run()
    before = bench.run_store.next_row(A)
    assert before > 0
    bench.journal.write(
        lambda c: c.execute(
            "UPDATE states SET body = ? WHERE run_id ="
            " (SELECT run_id FROM runs WHERE experiment = 'a')",
            (b"0",),
        )
    )
    bench.restart()
    bench.spool.append([batch(A, 9), batch(B, 9)])
    bench.drain.finish(bench.now_ns)
    assert bench.run_store.rows(A, start=before, limit=1)[0].number == before
    assert (bench.steps(A)[-1], bench.steps(B)) == (9, [0, 1, 2, 9])


def test_a_full_disk_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0), batch(B, 0)])
    bench.run()
    bench.spool.append([batch(A, 1), batch(B, 1), batch(A, 2)])

    def full(_self: RunStore, _commits: list[Commit]) -> None:
        raise JournalFull("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "commit", full)
        for _ in range(3):
            with pytest.raises(JournalFull):
                bench.run(seconds=2)
    bench.drain.finish(bench.now_ns)
    assert (bench.steps(A), bench.steps(B)) == ([0, 1, 2], [0, 1])
    assert bench.counters.value(Counter.SAMPLES_DUPLICATE) == 0


def test_one_run_that_cannot_be_committed_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0), batch(B, 0)])
    commit = RunStore.commit

    def refuse_a(run_store: RunStore, commits: list[Commit]) -> None:
        if any(one.key == A for one in commits):
            raise ValueError("a bug")
        commit(run_store, commits)

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "commit", refuse_a)
        bench.run()
        assert bench.spool.waiting() == [A]
    assert bench.counters.value(Counter.EXCEPTIONS, reason=Where.DRAIN) == 1
    bench.run(seconds=2)
    bench.drain.finish(bench.now_ns)
    assert (bench.steps(A), bench.steps(B)) == ([0], [0])


def test_a_silent_run_is_taken_up_after_a_restart(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    assert bench.steps(A) == []
    bench.restart()
    bench.run(seconds=100)
    assert bench.steps(A) == []  # while no bridge was there, its workers could not go on
    bench.run(seconds=100)
    assert bench.steps(A) == [0]


def test_a_run_that_has_been_silent_for_long_is_not_kept_in_memory_and_goes_on(
    bench: Bench,
) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.run(seconds=100)
    bench.run(seconds=1000)
    bench.spool.append([batch(A, 0), batch(A, 1)])
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == [0, 1]


def test_a_run_whose_rows_nobody_takes_waits_and_the_others_go_on(bench: Bench) -> None:
    bench.run_store.has_room = lambda key: key == B  # type: ignore[method-assign]
    bench.spool.append([batch(A, 0), batch(B, 0)])
    bench.drain.finish(bench.now_ns)
    assert (bench.spool.waiting(), bench.steps(B)) == ([A], [0])


def test_the_run_says_what_the_bridge_did_to_it(bench: Bench) -> None:
    bench.spool.append([batch(A, 0), batch(A, 0), batch(A, 1)])
    bench.counters.add(Counter.POINTS_REFUSED, 7, reason=Refusal.TOO_MANY_BUCKETS, run=A)
    bench.drain.finish(bench.now_ns)
    report = bench.report(A)
    assert report["otel_rl/bridge/points/refused/too_many_buckets"] == 7
    assert report["otel_rl/bridge/samples/taken"] == 2
    assert report["otel_rl/bridge/samples/duplicate"] == 1
    assert report["otel_rl/bridge/samples/late"] == 0


def test_what_the_run_says_of_the_bridge_goes_on_after_a_restart(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.counters.add(Counter.POINTS_REFUSED, 7, reason=Refusal.TOO_MANY_BUCKETS, run=A)
    bench.drain.finish(bench.now_ns)
    bench.restart()
    bench.spool.append([batch(A, 1), batch(A, 0)])
    bench.drain.finish(bench.now_ns)
    report = bench.report(A)
    assert report["otel_rl/bridge/points/refused/too_many_buckets"] == 7
    assert report["otel_rl/bridge/samples/taken"] == 2
    assert report["otel_rl/bridge/samples/duplicate"] == 1


def test_what_was_counted_for_a_run_survives_a_full_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0), batch(A, 1)])
    bench.counters.add(Counter.POINTS_REFUSED, 7, reason=Refusal.TOO_MANY_BUCKETS, run=A)

    def full(_self: RunStore, _commits: list[Commit]) -> None:
        raise JournalFull("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "commit", full)
        for _ in range(3):
            with pytest.raises(JournalFull):
                bench.run(seconds=2)
    bench.drain.finish(bench.now_ns)
    assert bench.report(A)["otel_rl/bridge/points/refused/too_many_buckets"] == 7


def test_what_was_counted_for_a_silent_run_is_told_when_it_speaks_again(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.run(seconds=100)
    bench.counters.add(Counter.POINTS_REFUSED, 7, reason=Refusal.TOO_MANY_BUCKETS, run=A)
    bench.run(seconds=100)
    bench.run(seconds=1000)
    bench.spool.append([batch(A, 1)])
    bench.drain.finish(bench.now_ns)
    assert bench.report(A)["otel_rl/bridge/points/refused/too_many_buckets"] == 7


def test_a_batch_is_counted_as_set_aside_once_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([broken(A)])

    def full(_self: Spool, _key: ExperimentKey, _offset: int) -> None:
        raise JournalFull("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(Spool, "set_aside", full)
        for _ in range(3):
            with pytest.raises(JournalFull):
                bench.run(seconds=2)
    bench.drain.finish(bench.now_ns)
    assert bench.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE) == 1


def test_a_run_that_failed_goes_on_although_the_clock_is_set_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0)])

    def fail(_self: RunStore, _commits: list[Commit]) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "commit", fail)
        bench.run()
    bench.run(seconds=-3600)
    assert bench.spool.waiting() == []


def test_an_experiment_with_open_steps_is_in_use_at_any_moment_of_a_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (A, B):
        bench.spool.append([batch(key, 0)])
    bench.run()
    bench.restart()
    found: list[set[ExperimentKey]] = []
    saved = RunStore.saved

    def watched(run_store: RunStore, key: ExperimentKey) -> SavedRun:
        found.append(set(bench.drain.experiments()))
        return saved(run_store, key)

    monkeypatch.setattr(RunStore, "saved", watched)
    bench.run()
    assert found == [{A, B}, {A, B}]


def said(key: ExperimentKey, *records: LogRecord) -> Batch:
    resource = {
        "rl.experiment.name": key.experiment,
        "rl.worker.role": "trainer",
        "service.instance.id": "one",
    }
    payload = logs_request(*records, resource=resource).SerializeToString()
    return Batch(key, Signal.LOGS, payload, T0)


def test_what_is_announced_of_a_run_is_told_and_survives_a_restart(bench: Bench) -> None:
    start = event("rl.experiment.start", {"rl.experiment.config": {"lr": 0.1}}, time_ns=T0)
    bench.spool.append([said(A, start)])
    bench.run()
    assert bench.told == [A]
    assert bench.run_store.description(A).config == {"lr": 0.1}
    bench.restart()
    assert bench.run_store.description(A).config == {"lr": 0.1}
    bench.spool.append([said(A, event("rl.experiment.start", {}, time_ns=T0 + 1))])
    bench.run()
    assert bench.run_store.description(A).config == {"lr": 0.1}
    assert bench.told == []


def test_a_table_of_samples_is_a_row_of_the_run(bench: Bench) -> None:
    sample = event("rl.rollout.sample", {"rl.loop.iteration": 3}, {"prompt": "2+2?"}, time_ns=T0)
    bench.spool.append([said(A, sample)])
    bench.run()
    bench.run(seconds=10)
    bench.restart()
    (row,) = [row for row in bench.run_store.rows(A, start=0, limit=10) if row.tables]
    table = row.tables["trainer/samples"]
    assert (row.step, table.columns, table.rows) == (
        3,
        ["step", "prompt", "worker"],
        [[3, "2+2?", "0"]],
    )


def traced(key: ExperimentKey, *, step: int) -> Batch:
    """A step of a second, of which half was training."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(
        key_values(
            {
                "rl.experiment.name": key.experiment,
                "rl.worker.role": "trainer",
                "service.instance.id": "one",
            }
        )
    )
    spans = resource_spans.scope_spans.add().spans
    trace, start = step.to_bytes(16), T0 + step * S
    for name, number, end in (("rl.loop", 1, start + S), ("rl.train", 2, start + S // 2)):
        spans.add(
            trace_id=trace,
            span_id=number.to_bytes(8),
            parent_span_id=(1).to_bytes(8) if number == 2 else b"",
            name=name,
            start_time_unix_nano=start,
            end_time_unix_nano=end,
            attributes=key_values(
                {"rl.loop.iteration": step} | ({"rl.phase": "train"} if number == 2 else {})
            ),
        )
    return Batch(key, Signal.TRACES, request.SerializeToString(), T0)


def test_a_step_is_explained_in_one_row_whenever_the_bridge_dies(bench: Bench) -> None:
    bench.spool.append([batch(A, 3), traced(A, step=3)])
    bench.run(seconds=1)
    bench.restart()
    bench.spool.append([traced(A, step=3)])  # its sender repeats it
    bench.run()
    bench.run(seconds=20)
    bench.restart()
    bench.spool.append([traced(A, step=3)])
    bench.run()
    bench.run(seconds=20)
    rows = bench.run_store.rows(A, start=0, limit=100)
    explained = [row for row in rows if "critical_path/trainer/train" in row.values]
    (row,) = explained
    assert row.step == 3
    assert {key: of for key, of in row.values.items() if key.startswith("critical_path")} == {
        "critical_path/trainer/train": 0.5,
        "critical_path/trainer/unaccounted": 0.5,
    }
    assert row.values["health/trainer/busy"] == 1.0
    assert row.labels == {
        "critical_path/longest": "trainer/train",
        "critical_path/trace_id": (3).to_bytes(16).hex(),
        "critical_path/worker": "trainer/0",
        "health/bound": "trainer",
    }


def test_an_explained_step_leads_to_its_trace_where_a_person_sees_traces(store: Store) -> None:
    url = "http://jaeger:16686/trace/{trace_id}?step"
    bench = Bench(store, AlignSettings(start_wait_s=0, trace_url=url))
    bench.spool.append([batch(A, 3), traced(A, step=3)])
    bench.run()
    bench.run(seconds=20)
    rows = bench.run_store.rows(A, start=0, limit=100)
    (row,) = [row for row in rows if "critical_path/trainer/train" in row.values]
    trace = (3).to_bytes(16).hex()
    assert row.labels["critical_path/trace_url"] == f"http://jaeger:16686/trace/{trace}?step"


def alive(key: ExperimentKey) -> Batch:
    """What a worker says of itself when its program measures nothing."""
    request = metrics_request(
        gauge(point(0.0, T0), name="otel_rl.worker.queue"),
        resource={
            "rl.experiment.name": key.experiment,
            "rl.worker.role": "trainer",
            "service.instance.id": "one",
        },
    )
    return Batch(key, Signal.METRICS, request.SerializeToString(), T0)


def test_a_run_that_has_ended_with_no_metric_is_named_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.spool.append([alive(A), batch(B, 1)])
    bench.run()
    assert list(bench.drain.without_metrics) == []  # it may still log
    bench.drain.finish(bench.now_ns, failed=False)
    bench.drain.finish(bench.now_ns, failed=False)
    assert list(bench.drain.without_metrics) == [A]
    assert [line for line in caplog.messages if "ended with no metric" in line] == [
        line for line in caplog.messages if line.startswith("a/default ended with no metric")
    ]
    assert caplog.text.count("ended with no metric") == 1


SLOW = Finding(3, T0, "cause", "the judge is slow", [{"kind": "slow_reward", "role": "judge"}])


def alerts(bench: Bench, key: ExperimentKey) -> list[str]:
    rows = bench.run_store.rows(key, start=0, limit=10_000)
    return [text for row in rows if (text := alert_text(row.labels)) is not None]


@pytest.mark.parametrize("error", [JournalFull("The disk is full."), ValueError("a bug")])
def test_a_finding_is_told_once_though_its_first_commits_are_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()

    def undo(_self: RunStore, _commits: list[Commit]) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "commit", undo)
        bench.drain.add_finding(A, SLOW)
        for _ in range(3):
            with contextlib.suppress(JournalFull):
                bench.run(seconds=2)
    assert alerts(bench, A) == []
    for _ in range(3):
        bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slow"]
    bench.restart()
    bench.drain.add_finding(A, SLOW)  # what a bridge finds that has just begun is no news
    bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slow"]


def test_a_finding_beside_a_damaged_batch_is_told(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.spool.append([broken(A), broken(A)])
    bench.drain.add_finding(A, SLOW)
    bench.run(seconds=2)
    bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slow"]


def test_of_two_findings_at_once_the_later_one_is_told(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.drain.add_finding(A, SLOW)
    bench.drain.add_finding(A, msgspec.structs.replace(SLOW, words="the judge is slower", step=4))
    bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slower"]


def test_a_cause_that_has_passed_is_not_the_last_one_told(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.drain.add_finding(A, SLOW)
    bench.run(seconds=2)
    bench.drain.add_finding(A, Finding(9, T0, "healthy", "no fault found"))
    bench.run(seconds=2)
    rows = bench.run_store.rows(A, start=0, limit=10_000)
    causes = [row.labels[DIAGNOSIS_CAUSE] for row in rows if DIAGNOSIS_CAUSE in row.labels]
    assert causes == ["slow_reward", "none"]
    assert alerts(bench, A) == ["the judge is slow"]


def slow(times: float, *, until: int | None = None, is_last: bool = False) -> Finding:
    cause = {"kind": "slow_reward", "role": "judge", "amount": {"ratio": times, "after": 1.0}}
    words = f"the judge is {times} times slower"
    causes = [{**cause, "until_step": until, "words": words}]
    return Finding(3, T0, "cause", words, causes, is_last=is_last)


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (slow(4.5), ["the judge is 4.3 times slower"]),
        (slow(8.4), ["the judge is 4.3 times slower", "the judge is 8.4 times slower"]),
        (slow(2.0), ["the judge is 4.3 times slower", "the judge is 2.0 times slower"]),
        (slow(4.4, until=9), ["the judge is 4.3 times slower", "the judge is 4.4 times slower"]),
        (
            slow(4.5, is_last=True),
            ["the judge is 4.3 times slower", "the judge is 4.5 times slower"],
        ),
    ],
    ids=["about as much", "more", "less", "over", "at the end"],
)
def test_the_estimate_in_a_run_stays_current_and_alerts_once(
    bench: Bench, later: Finding, told: list[str]
) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    for finding in (slow(4.3), later, later):
        bench.drain.add_finding(A, finding)
        bench.run(seconds=2)
    rows = bench.run_store.rows(A, start=0, limit=10_000)
    assert [row.labels[DIAGNOSIS_ALERT] for row in rows if DIAGNOSIS_ALERT in row.labels] == told
    ranked = [row.tables["diagnosis/ranked"] for row in rows if "diagnosis/ranked" in row.tables]
    assert [table.rows[0][-1] for table in ranked] == told
    assert alerts(bench, A) == told[:1]


def test_a_fault_that_was_over_and_comes_back_alerts_again(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    for finding in (slow(4.3), slow(4.4, until=9), slow(4.5), slow(4.5)):
        bench.drain.add_finding(A, finding)
        bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is 4.3 times slower", "the judge is 4.5 times slower"]


def spans_of(bench: Bench, key: ExperimentKey) -> dict[tuple[int, str], int]:
    """How often each span of a step is in what is kept for a diagnosis."""
    found: dict[tuple[int, str], int] = {}
    with bench.journal.read() as connection:
        bodies = [body for _, body in read_history(connection, run_id(*key), limit=10_000)]
    for body in filter(None, bodies):
        for facts in Facts.decode(body).spans:
            place = facts.step, facts.phase
            found[place] = found.get(place, 0) + facts.spans
    return found


def texts(bench: Bench, key: ExperimentKey) -> list[Value]:
    """All that stands in the run's tables of samples."""
    rows = bench.run_store.rows(key, start=0, limit=10_000)
    lines = [line for row in rows for table in row.tables.values() for line in table.rows]
    return [value for line in lines for value in line]


def test_spans_samples_and_steps_that_come_again_count_once_whenever_they_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one request, in two at once, after some time, after a rollback, after a restart."""
    sent = [traced(A, step=3), sampled(A, "an answer"), batch(A, 3)]
    doubled = dataclasses.replace(sent[0], payload=sent[0].payload * 2)  # of protobuf: both
    bench.spool.append([doubled, *sent, *sent])
    bench.run()

    def full(_self: RunStore, _commits: list[Commit]) -> None:
        raise JournalFull("The disk is full.")

    for again in range(3):
        bench.spool.append(sent)
        with monkeypatch.context() as patched:
            patched.setattr(RunStore, "commit", full)
            with pytest.raises(JournalFull):
                bench.run(seconds=2)
        bench.run(seconds=2)
        if again:
            bench.restart()
    bench.spool.append([*sent, batch(A, 4)])
    bench.run(seconds=20)
    bench.drain.finish(bench.now_ns)
    assert spans_of(bench, A) == {(3, "rl.loop"): 1, (3, "train"): 1}
    assert texts(bench, A).count("an answer") == 1
    assert bench.steps(A) == [3, 4]


def sampled(key: ExperimentKey, text: str) -> Batch:
    attributes: Attributes = {"rl.loop.iteration": 3, "rl.sample.table": "answers"}
    return said(key, event("rl.rollout.sample", attributes, {"answer": text}, time_ns=T0))


class Touch:
    """Pickles to a command."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.system, ("touch mark",)


BOMB = zlib.compress(bytes(64 << 20))

FORGED = {
    "a command": pickle.dumps(Touch()),
    "nothing": b"",
    "text": b"no state",
    "a number": msgspec.msgpack.encode(7),
    "another version": msgspec.msgpack.encode([2, [], [], None]),
    "no fields": msgspec.msgpack.encode([1]),
    "fields of other types": msgspec.msgpack.encode([1, "aligner", 7, "cut"]),
    "a length that nothing follows": b"\x94\x01\xdd\xff\xff\xff\xff",
    "arrays within arrays": b"\x94\x01" + b"\x91" * 100_000,
    "a bomb": BOMB,
}


def overwrite(bench: Bench, kind: str, key: ExperimentKey, body: bytes) -> None:
    """As somebody does who can write to the database."""
    run = run_id(key.experiment, key.trial)
    table, condition, columns = "states", "", [run]
    if kind != "state":
        table, condition, columns = "log", " AND kind = ?", [run, kind]
        body = body if body is BOMB else zlib.compress(body)
    crc = checksum(body, *columns)
    bench.journal.write(
        lambda connection: connection.execute(
            f"UPDATE {table} SET body = ?, crc = ? WHERE run_id = ?{condition}",
            (body, crc, *columns),
        )
    )


@pytest.mark.parametrize("kind", ["state", "dedup", "spans"])
@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_what_nobody_of_us_has_written_is_refused_and_harms_no_other_run(
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    body: bytes,
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in (A, B):
        bench.spool.append([batch(key, 0), traced(key, step=0), sampled(key, "an answer")])
    bench.run()
    bench.run(seconds=2)
    overwrite(bench, kind, A, body)
    bench.restart()
    bench.spool.append([batch(key, step) for key in (A, B) for step in (1, 2)])
    bench.run()
    bench.drain.finish(bench.now_ns)
    assert not Path("mark").exists()
    assert bench.counters.value(Counter.STATES_LOST, reason=StateFault.REFUSED) == 1
    assert bench.counters.value(Counter.EXCEPTIONS, reason=Where.DRAIN) == 0
    verb = "is" if kind == "state" else "are"
    assert f"of {A} in the journal {verb} refused: it" in caplog.text
    assert "Find out who else can write to the journal." in caplog.text
    assert bench.steps(B) == [0, 1, 2]
    assert bench.steps(A) == ([1, 2] if kind == "state" else [0, 1, 2])


HOUR_S = 3600.0


def levels_of(bench: Bench, key: ExperimentKey) -> list[tuple[int, float]]:
    """The step and the value of each row of a level."""
    rows = bench.run_store.rows(key, start=0, limit=10_000)
    return [
        (row.step, row.values["trainer/depth"]) for row in rows if "trainer/depth" in row.values
    ]


def lived(bench: Bench, worker: str, steps: range, *, wrong_s: float) -> None:
    """A worker makes a step a second, and has a queue. The bridge's clock is wrong."""
    for step in steps:
        time_ns = T0 + step * S
        measured = point(float(step), time_ns)
        measured.attributes.extend(key_values({"rl.loop.iteration": step}))
        request = metrics_request(
            gauge(measured),
            gauge(point(float(step), time_ns), name="depth"),
            resource={
                "rl.experiment.name": A.experiment,
                "rl.worker.role": "trainer",
                "service.instance.id": worker,
            },
        )
        received_ns = time_ns + int(wrong_s * S)
        payload = request.SerializeToString()
        bench.spool.append([Batch(A, Signal.METRICS, payload, received_ns)])
        bench.now_ns = received_ns
        bench.run(seconds=0.1)


@pytest.mark.parametrize("wrong_s", [HOUR_S, -HOUR_S], ids=["ahead", "behind"])
@pytest.mark.parametrize("begun", slow_after(1, ["on the way", "at the start"]))
@pytest.mark.parametrize("restarts", slow_after(1, [1, 0]), ids=["set and restarted", "set"])
@pytest.mark.parametrize(
    "worker", slow_after(1, ["one", "two"]), ids=["the same worker", "another"]
)
def test_a_clock_that_was_an_hour_off_is_forgotten_once_it_is_right(
    bench: Bench, wrong_s: float, begun: str, restarts: int, worker: str
) -> None:
    """Steps close in time, and levels stand at their steps, whoever goes on."""
    if begun == "on the way":
        lived(bench, "one", range(20), wrong_s=0)
        bench.restart()
    lived(bench, "one", range(20, 40), wrong_s=wrong_s)
    for _ in range(restarts):
        bench.restart()
    lived(bench, worker, range(40, 160), wrong_s=0)
    assert bench.steps(A)[-20:] == list(range(bench.steps(A)[-1] - 19, bench.steps(A)[-1] + 1))
    assert bench.steps(A)[-1] >= 150
    bench.drain.finish(bench.now_ns)
    first = 0 if begun == "on the way" else 20
    assert bench.steps(A) == list(range(first, 160))
    assert levels_of(bench, A)[-1][0] >= 150
    assert bench.counters.value(Counter.SAMPLES_DROPPED) == 0
