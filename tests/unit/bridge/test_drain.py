"""From the spool to the ledger: experiments take turns and fail apart."""

import contextlib
import dataclasses
import os
import pickle
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.align import AlignSettings
from otel_rl.bridge.align.finding import Finding
from otel_rl.bridge.counters import Counter, Counters, Refusal, SampleDrop, StateFault, Where
from otel_rl.bridge.drain import Drain
from otel_rl.bridge.drain import _State as State
from otel_rl.bridge.journal import checksum
from otel_rl.bridge.keys import DIAGNOSIS_ALERT
from otel_rl.bridge.ledger import Commit, Ledger, Saved
from otel_rl.bridge.spool import Spool
from otel_rl.diagnose.facts import Facts
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Signal, Value
from otel_rl.semconv.run_id import run_id
from tests.otlp_requests import (
    Attributes,
    event,
    gauge,
    key_values,
    logs_request,
    metrics_request,
    point,
)
from tests.stores import Store

S = 1_000_000_000
T0 = 1_700_000_000 * S
A, B = ExperimentKey("a"), ExperimentKey("b")


def batch(key: ExperimentKey, step: int, *, padding: int = 0) -> Batch:
    """A measurement of one step, as a stock SDK sends it."""
    measured = point(float(step), T0 + step)
    measured.attributes.extend(key_values({"rl.loop.iteration": step}))
    request = metrics_request(
        gauge(measured),
        resource={
            "rl.experiment.name": key.experiment,
            "rl.worker.role": "trainer",
            "service.instance.id": "one",
            "padding": "x" * padding,
        },
    )
    return Batch(key, Signal.METRICS, request.SerializeToString(), T0)


def broken(key: ExperimentKey) -> Batch:
    return Batch(key, Signal.METRICS, b"\xff no protobuf", T0)


class Bench:
    """The core of a bridge, with a clock that tests move by hand."""

    def __init__(self, store: Store, settings: AlignSettings | None = None) -> None:
        self._store = store
        self._settings = settings or AlignSettings(quiet_s=0)
        self.now_ns = T0
        self.begin()

    def begin(self) -> None:
        """As after a start."""
        self.journal = self._store.open()
        self.spool, self.ledger = Spool(self.journal), Ledger(self.journal)
        self.counters = Counters()
        self.told: list[ExperimentKey] = []
        self.drain = Drain(
            self.spool,
            self.ledger,
            settings=self._settings,
            counters=self.counters,
            notify=self.told.append,
        )

    def restart(self) -> None:
        """As after kill -9: what is not in the journal is gone."""
        self.journal.close()
        self.begin()

    def run(self, seconds: float = 0) -> None:
        """Let time pass, then make rows until there is nothing more to do at once."""
        self.now_ns += int(seconds * S)
        while self.drain.round(self.now_ns):
            pass

    def steps(self, key: ExperimentKey) -> list[int]:
        rows = self.ledger.rows(key, start=0, limit=10_000)
        return [row.step for row in rows if "trainer/loss" in row.values]

    def report(self, key: ExperimentKey) -> Mapping[str, float]:
        """What the run says of the bridge, as of its last row that does."""
        rows = self.ledger.rows(key, start=0, limit=10_000)
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


def test_the_backlog_of_one_experiment_does_not_delay_another(bench: Bench) -> None:
    flood = [batch(A, step, padding=100_000) for step in range(150)]
    bench.spool.append(flood)
    bench.spool.append([batch(B, step) for step in range(3)])
    bench.drain.round(bench.now_ns)
    assert bench.steps(B)[:2] == [0, 1]
    assert len(bench.steps(A)) < len(flood)
    bench.drain.finish(bench.now_ns)
    assert bench.steps(A) == list(range(150))


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

    def drain(turn: Turn, gauges: Callable[[ExperimentKey], dict[str, float]]) -> Drain:
        ledger = Ledger(bench.journal, owners=turn)
        return Drain(
            bench.spool,
            ledger,
            settings=AlignSettings(quiet_s=0),
            counters=bench.counters,
            notify=bench.told.append,
            gauges=gauges,
            owners=turn,
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
    drain = Drain(
        bench.spool,
        Ledger(bench.journal, owners=owners),
        settings=AlignSettings(quiet_s=0),
        counters=bench.counters,
        notify=bench.told.append,
        owners=owners,
    )
    drain.round(bench.now_ns)
    assert (bench.told, bench.spool.pending()) == ([], 1)


def test_a_bad_batch_is_set_aside_and_takes_nothing_else_with_it(bench: Bench) -> None:
    bench.spool.append([batch(A, 0), batch(B, 0), batch(A, 1), broken(A), batch(A, 2)])
    bench.drain.finish(bench.now_ns)
    assert (bench.steps(A), bench.steps(B)) == ([0, 1, 2], [0])
    assert bench.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE) == 1
    assert bench.spool.pending() == 0


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
    before = bench.ledger.next_row(A)
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
    assert bench.ledger.rows(A, start=before, limit=1)[0].number == before
    assert (bench.steps(A)[-1], bench.steps(B)) == (9, [0, 1, 2, 9])


def test_a_full_disk_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0), batch(B, 0)])
    bench.run()
    bench.spool.append([batch(A, 1), batch(B, 1), batch(A, 2)])

    def full(_self: Ledger, _commits: list[Commit]) -> None:
        raise JournalFull("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", full)
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
    commit = Ledger.commit

    def refuse_a(ledger: Ledger, commits: list[Commit]) -> None:
        if any(one.key == A for one in commits):
            raise ValueError("a bug")
        commit(ledger, commits)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", refuse_a)
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
    bench.ledger.has_room = lambda key: key == B  # type: ignore[method-assign]
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

    def full(_self: Ledger, _commits: list[Commit]) -> None:
        raise JournalFull("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", full)
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

    def full(_self: Ledger, _key: ExperimentKey, _offset: int) -> None:
        raise JournalFull("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "set_aside", full)
        for _ in range(3):
            with pytest.raises(JournalFull):
                bench.run(seconds=2)
    bench.drain.finish(bench.now_ns)
    assert bench.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE) == 1


def test_a_run_that_failed_goes_on_although_the_clock_is_set_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.spool.append([batch(A, 0)])

    def fail(_self: Ledger, _commits: list[Commit]) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", fail)
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
    saved = Ledger.saved

    def watched(ledger: Ledger, key: ExperimentKey) -> Saved:
        found.append(set(bench.drain.experiments()))
        return saved(ledger, key)

    monkeypatch.setattr(Ledger, "saved", watched)
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
    assert bench.ledger.description(A).config == {"lr": 0.1}
    bench.restart()
    assert bench.ledger.description(A).config == {"lr": 0.1}
    bench.spool.append([said(A, event("rl.experiment.start", {}, time_ns=T0 + 1))])
    bench.run()
    assert bench.ledger.description(A).config == {"lr": 0.1}
    assert bench.told == []


def test_a_table_of_samples_is_a_row_of_the_run(bench: Bench) -> None:
    sample = event("rl.rollout.sample", {"rl.loop.iteration": 3}, {"prompt": "2+2?"}, time_ns=T0)
    bench.spool.append([said(A, sample)])
    bench.run()
    bench.run(seconds=10)
    bench.restart()
    (row,) = [row for row in bench.ledger.rows(A, start=0, limit=10) if row.tables]
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
    rows = bench.ledger.rows(A, start=0, limit=100)
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
    bench = Bench(store, AlignSettings(quiet_s=0, trace_url=url))
    bench.spool.append([batch(A, 3), traced(A, step=3)])
    bench.run()
    bench.run(seconds=20)
    rows = bench.ledger.rows(A, start=0, limit=100)
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
    rows = bench.ledger.rows(key, start=0, limit=10_000)
    return [row.labels[DIAGNOSIS_ALERT] for row in rows if DIAGNOSIS_ALERT in row.labels]


@pytest.mark.parametrize("error", [JournalFull("The disk is full."), ValueError("a bug")])
def test_a_finding_is_told_once_though_its_first_commits_are_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()

    def undo(_self: Ledger, _commits: list[Commit]) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", undo)
        bench.drain.tell(A, SLOW)
        for _ in range(3):
            with contextlib.suppress(JournalFull):
                bench.run(seconds=2)
    assert alerts(bench, A) == []
    for _ in range(3):
        bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slow"]
    bench.restart()
    bench.drain.tell(A, SLOW)  # what a bridge finds that has just begun is no news
    bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slow"]


def test_a_finding_beside_a_damaged_batch_is_told(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.spool.append([broken(A), broken(A)])
    bench.drain.tell(A, SLOW)
    bench.run(seconds=2)
    bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slow"]


def test_of_two_findings_at_once_the_later_one_is_told(bench: Bench) -> None:
    bench.spool.append([batch(A, 0)])
    bench.run()
    bench.drain.tell(A, SLOW)
    bench.drain.tell(A, dataclasses.replace(SLOW, words="the judge is slower", step=4))
    bench.run(seconds=2)
    assert alerts(bench, A) == ["the judge is slower"]


def spans_of(bench: Bench, key: ExperimentKey) -> dict[tuple[int, str], int]:
    """How often each span of a step is in what is kept for a diagnosis."""
    found: dict[tuple[int, str], int] = {}
    for body in bench.ledger.history(key):
        for facts in Facts.decode(body).spans:
            place = facts.step, facts.phase
            found[place] = found.get(place, 0) + facts.spans
    return found


def texts(bench: Bench, key: ExperimentKey) -> list[Value]:
    """All that stands in the run's tables of samples."""
    rows = bench.ledger.rows(key, start=0, limit=10_000)
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

    def full(_self: Ledger, _commits: list[Commit]) -> None:
        raise JournalFull("The disk is full.")

    for again in range(3):
        bench.spool.append(sent)
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "commit", full)
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


def overwrite(bench: Bench, table: str, key: ExperimentKey, what: object) -> None:
    """As somebody does who can write to the database."""
    body, run = pickle.dumps(what), run_id(key.experiment, key.trial)
    if table == "trails":
        body = zlib.compress(body)
    crc = checksum(body, run)
    bench.journal.write(
        lambda connection: connection.execute(
            f"UPDATE {table} SET body = ?, crc = ? WHERE run_id = ?", (body, crc, run)
        )
    )


@pytest.mark.parametrize("table", ["states", "trails"])
@pytest.mark.parametrize("what", [Touch(), [Touch()], ["no state"], 7, State], ids=str)
def test_what_nobody_of_us_has_written_is_refused_and_harms_no_other_run(
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    table: str,
    what: object,
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in (A, B):
        bench.spool.append([batch(key, 0), traced(key, step=0)])
    bench.run()
    bench.run(seconds=2)
    overwrite(bench, table, A, what)
    bench.restart()
    bench.spool.append([batch(key, step) for key in (A, B) for step in (1, 2)])
    bench.run()
    bench.drain.finish(bench.now_ns)
    assert not Path("mark").exists()
    assert bench.counters.value(Counter.STATES_LOST, reason=StateFault.REFUSED) == 1
    assert bench.counters.value(Counter.EXCEPTIONS, reason=Where.DRAIN) == 0
    assert (
        f"of {A} in the journal {'is' if table == 'states' else 'are'} refused: it" in caplog.text
    )
    assert bench.steps(B) == [0, 1, 2]
    assert bench.steps(A) == ([1, 2] if table == "states" else [0, 1, 2])
