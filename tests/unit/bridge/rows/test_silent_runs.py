"""Many live runs: those with news do not wait for looks at all others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps import step_closing
from otel_rl.records import ExperimentKey
from tests.support.stores import Store
from tests.unit.bridge.rows.test_scheduler import SLOW, B, Bench, alerts, batch

MANY = [ExperimentKey(f"run-{n}") for n in range(100)]


def of_many(store: Store, settings: AlignSettings | None = None) -> Bench:
    """A bridge with open steps of many runs, all of which it has just looked at."""
    bench = Bench(store, settings)
    bench.spool.append([batch(key, step) for key in MANY for step in (0, 1)])
    bench.run()
    bench.run(1.0)
    return bench


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were looked at, in order."""
    found: list[Run] = []
    close = Run.close

    def noted(aligner: Run, now_ns: int, **options: Any) -> Sequence[object]:
        found.append(aligner)
        return close(aligner, now_ns, **options)

    monkeypatch.setattr(Run, "close", noted)
    return found


def test_of_many_runs_a_round_looks_at_those_with_news(
    store: Store, looks: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_closing, "_QUIET_NS", 0)
    bench = of_many(store)
    looks.clear()
    for step in range(5):
        bench.spool.append([batch(B, step)])
        bench.run(0.01)
    assert len(looks) == 5
    assert bench.steps(B) == [0, 1, 2, 3, 4]


def test_time_closes_the_rows_of_many_runs_a_second_later_at_most(store: Store) -> None:
    bench = of_many(store, AlignSettings(start_wait_s=0))
    news = [replace(batch(key, 2), received_ns=bench.now_ns) for key in MANY]
    bench.spool.append(news)
    bench.run(0.9)
    assert not any(2 in bench.steps(key) for key in MANY)
    for step in range(5):
        bench.spool.append([batch(B, step)])
        bench.run(0.2)
    assert all(bench.steps(key) == [0, 1, 2] for key in MANY)


def test_a_finding_of_a_silent_run_does_not_wait(store: Store) -> None:
    bench = of_many(store)
    bench.drain.add_finding(MANY[7], SLOW)
    bench.run(0.01)
    assert alerts(bench, MANY[7])


def test_a_clock_that_is_set_back_stops_no_look(store: Store, looks: list[Run]) -> None:
    bench = of_many(store)
    looks.clear()
    bench.run(-3600)
    assert len(looks) == len(MANY)
