"""The phase of a worker, by ended spans and by the heartbeats of a phase in progress."""

from collections.abc import Mapping

import pytest

from otel_rl.diagnose.history.records import Facts, SpanFacts, WorkerFacts
from otel_rl.view.run_data import LastPhase, RunData

S = 1_000_000_000
WORKER = "trainer/0"


def ended(at_s: int, phase: str) -> Facts:
    span = SpanFacts(1, "trainer", phase, WORKER, False, 1, 0.1, 0.1, 0)
    return Facts(at_s * S, 1, spans=[span])


def within(at_s: int, ages_s: Mapping[str, float]) -> Facts:
    """A heartbeat with the age of each open phase."""
    workers = {
        f"worker/phase/age/{phase}": [WorkerFacts(WORKER, None, 1, age_s, 0)]
        for phase, age_s in ages_s.items()
    }
    return Facts(at_s * S, 1, workers=workers)


@pytest.mark.parametrize(
    ("records", "phase"),
    [
        ([ended(10, "sync")], LastPhase("sync", 1, 10 * S)),
        ([ended(10, "sync"), within(60, {"train": 45.0})], ("train", 1, 15 * S, False)),
        ([within(60, {"train": 45.0, "fit": 50.0})], ("train", 1, 15 * S, False)),
        ([within(60, {"fit": 50.0, "train": 45.0})], ("train", 1, 15 * S, False)),
        ([within(60, {"train": 45.0}), within(70, {"train": 55.0})], ("train", 1, 15 * S, False)),
        ([within(60, {"train": 45.0}), ended(80, "train")], LastPhase("train", 1, 80 * S)),
    ],
)
def test_a_worker_is_in_the_inner_phase_until_it_ends(
    records: list[Facts], phase: LastPhase
) -> None:
    data = RunData()
    for number, facts in enumerate(records):
        data.add(number, facts)
    assert data.last_phases[WORKER] == phase
