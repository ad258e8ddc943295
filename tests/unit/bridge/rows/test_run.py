"""A run in memory goes on from its last commit: no point twice, none lost, each counted once."""

from collections.abc import Callable, Mapping
from itertools import count

from otel_rl.bridge.counters import Counter, Counters, Refusal, SampleDrop, StateFault
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, SavedRun
from otel_rl.bridge.journal.spool import Spooled
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, ExperimentKey, Offset, Signal
from tests.support.otlp_requests import gauge, key_values, metrics_request, point

S = 1_000_000_000
T0 = 1_700_000_000 * S
KEY = ExperimentKey("a")
NEW = SavedRun(None, 0)


def spooled(
    offset: int, steps: range, *, is_damaged: bool = False, value: float | None = None
) -> Spooled:
    points = [
        point(float(step) if value is None else value, T0 + step + (value is not None))
        for step in steps
    ]
    for measured, step in zip(points, steps, strict=True):
        measured.attributes.extend(key_values({"rl.loop.iteration": step}))
    resource = {
        "rl.experiment.name": "a",
        "rl.worker.role": "trainer",
        "service.instance.id": "one",
    }
    payload = metrics_request(gauge(*points), resource=resource).SerializeToString()
    return Spooled(Offset(offset), Batch(KEY, Signal.METRICS, payload, T0), is_damaged)


def loaded(counters: Counters, saved: SavedRun = NEW) -> Run:
    settings = AlignSettings(start_wait_s=0)
    return Run.load(KEY, saved, settings, counters=counters, epoch=0, now_ns=T0)


def turn(parts: int) -> Callable[[], bool]:
    """Of so many parts."""
    looks = count(1)
    return lambda: next(looks) >= parts


def closed(run: Run) -> Mapping[int, float]:
    """The loss of each step that the run gives, now that nothing more comes."""
    rows = run.close(T0 + 60 * S, everything=True)
    return {row.step: row.values["trainer/loss"] for row in rows if "trainer/loss" in row.values}


def saved_after(commit: Commit) -> SavedRun:
    logs = {log: [part[1]] for log, part in commit.added.items() if part is not None}
    return SavedRun(commit.state, commit.next_row, logs)


def test_after_a_restart_late_samples_join_the_rows_of_their_steps() -> None:
    counters = Counters()
    run = loaded(counters)
    run.batches.read([spooled(1, range(3))], 1 << 20)
    run.take(turn(100), 100, T0)
    assert closed(run) == {0: 0.0, 1: 1.0, 2: 2.0}
    again = loaded(counters, saved_after(run.commit([], None, T0)))
    again.batches.read([spooled(2, range(1, 2), value=3.0)], 1 << 20)
    again.take(turn(100), 100, T0)
    assert closed(again) == {1: 2.0}


def test_a_batch_that_was_taken_in_part_is_taken_on_where_it_was_left() -> None:
    counters = Counters()
    run = loaded(counters)
    batch = spooled(7, range(10))
    run.batches.read([batch], 1)
    run.take(turn(2), 3, T0)
    assert not run.batches.taken
    commit = run.commit((), None, T0)
    again = loaded(counters, saved_after(commit))
    assert again.batches.cut is not None
    assert again.batches.cut[0] == 7
    again.batches.read([batch], 1)
    again.take(turn(100), 3, T0)
    assert [*again.batches.taken] == [7]
    assert closed(again) == {step: float(step) for step in range(10)}
    assert again.sample_counts.duplicate == 0


def test_a_large_batch_ends_a_turn_with_its_last_part() -> None:
    run = loaded(Counters())
    run.batches.read([spooled(1, range(10)), spooled(2, range(10, 11))], 1)
    run.take(turn(1), 4, T0)
    assert not run.batches.taken
    for _ in range(2):
        run.take(turn(1), 4, T0)
    assert [*run.batches.taken] == [1]


def test_a_damaged_batch_is_read_alone() -> None:
    run = loaded(Counters())
    batches = [spooled(n, range(1), is_damaged=n == 2) for n in range(4)]
    run.batches.read(batches, 1 << 20)
    assert [one.offset for one in run.batches.unread] == [0, 1]
    assert run.batches.reads_on
    run.batches.unread.clear()
    run.batches.read(batches[2:], 1 << 20)
    assert [one.offset for one in run.batches.unread] == [2]
    assert run.batches.reads_on


def test_points_of_a_removed_run_are_dropped_and_counted_once() -> None:
    counters = Counters()
    run = loaded(counters, SavedRun(None, 0, lost_ns=T0 + 4))
    run.batches.read([spooled(1, range(10))], 1)
    run.take(turn(100), 3, T0)
    assert sorted(closed(run)) == [5, 6, 7, 8, 9]
    for _ in range(2):
        run.committed(T0, "")
        assert counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.RUN_REMOVED) == 5
        assert counters.value(Counter.SAMPLES_TAKEN) == 5


def test_counts_in_a_report_that_was_not_committed_are_reported_by_the_next() -> None:
    counters = Counters()
    counters.add(Counter.POINTS_REFUSED, 3, reason=Refusal.MALFORMED, run=KEY)
    run = loaded(counters)
    told = run.report({})
    run.unload()
    again = loaded(counters)
    assert again.report({}) == told
    assert 3 in told.values()
    again.committed(T0, "")
    again.unload()
    assert 3 not in loaded(counters).report({}).values()


def test_a_state_that_is_refused_begins_anew_and_is_counted() -> None:
    counters = Counters()
    run = loaded(
        counters,
        SavedRun(b"nothing of ours", 5, dict.fromkeys((Log.DEDUP, Log.SPANS), (b"nor this",))),
    )
    assert counters.value(Counter.STATES_LOST, reason=StateFault.REFUSED) == 3
    assert run.row_maker.next_number == 5
    run.batches.read([spooled(1, range(3))], 1)
    run.take(turn(100), 3, T0)
    assert sorted(closed(run)) == [0, 1, 2]
