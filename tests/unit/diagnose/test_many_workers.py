"""Roles of more workers than the journal keeps of each step: only the extreme ones."""

import random
from collections.abc import Callable

import pytest

from otel_rl.bridge.rows.history import HistoryWriter
from otel_rl.diagnose.detectors.stale_policy import stale_policy
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.recorded import may_lack_until
from otel_rl.diagnose.history.records import ALL_RECORDED, MOST_EXTREME, Facts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import Kind
from otel_rl.records import ExperimentStatus, SpanRecord

_NS = 1_000_000_000
MAKERS = ALL_RECORDED + 8
STOPS = 30

Pulls = Callable[[int, int], bool]


def played(pulls: Pulls, *, steps: int = 60, stands_s: int = 0) -> RunHistory:
    """A run whose makers take up weights in a step and generate, as the bridge keeps it.

    The first one is the slowest to take them up until a step, and in the middle of all since. After
    the last step all still report for a while.
    """
    chance, writer, facts = random.Random(1), HistoryWriter(), list[Facts]()
    names = {str(maker): f"generator/{maker}" for maker in range(MAKERS)}
    for step in range(steps):
        begin_ns = (step + 1) * 10 * _NS
        spans, places = [], chance.sample(range(MAKERS), MAKERS)
        for maker in range(MAKERS):
            for phase, usual_s in (("weight_pull", 0.2), ("generate", 6.0)):
                if phase == "weight_pull" and not pulls(maker, step):
                    continue
                times = 0.9 + 0.2 * places[maker] / MAKERS
                if maker == 0 and phase == "weight_pull":
                    times = 1.2 if step < STOPS else 1.0
                took_ns = int(usual_s * times * _NS)
                spans.append(
                    SpanRecord(
                        f"{phase}{maker}-{step}".encode(),
                        None,
                        (),
                        "generator",
                        str(maker),
                        "host",
                        begin_ns,
                        begin_ns + took_ns,
                        phase,
                        phase=phase,
                        step=step,
                    )
                )
        writer.spanned(spans, lambda at_ns: None)
        kept = writer.take(begin_ns + 9 * _NS, step, {}, names, 1 << 24, everything=True)
        assert kept is not None
        facts.append(Facts.decode(kept.body))
    for _ in range(stands_s):
        alive = {"generator/gc/time": [WorkerFacts("generator/0", None, 1, 0.0, 0)]}
        later_ns, status = facts[-1].time_ns + _NS, ExperimentStatus.RUNNING
        facts.append(Facts(later_ns, steps - 1, workers=alive, status=status))
    return RunHistory(facts)


def test_a_maker_that_the_journal_did_not_keep_may_have_taken_up_weights() -> None:
    history = played(lambda maker, step: True)
    looks = (history.between(0, last) for last in range(12, 60, 3))
    assert [cause.words for look in looks for cause in stale_policy(look)] == []


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param(MAKERS, id="all"),
        pytest.param(MAKERS // 3, id="so many that none of the others is left out"),
    ],
)
def test_makers_of_a_large_role_that_stop_to_take_up_weights_are_told(stopped: int) -> None:
    history = played(lambda maker, step: maker >= stopped or step < STOPS)
    (cause,) = stale_policy(history)
    assert cause.role == "generator"
    assert cause.since is not None
    assert STOPS - 3 <= cause.since <= STOPS


@pytest.mark.parametrize(("last_ones", "named"), [(MAKERS, 0), (MAKERS - 12, 12)])
def test_a_maker_that_the_journal_did_not_keep_has_not_stopped_first(
    last_ones: int, named: int
) -> None:
    def pulls(maker: int, step: int) -> bool:
        return maker < last_ones or step < STOPS - 1

    (cause,) = diagnose(played(pulls, steps=STOPS, stands_s=200)).causes
    assert cause.kind is Kind.STALL
    assert len([one for one in cause.evidence if one.worker]) == min(named, 6), cause.words


@pytest.mark.parametrize("workers", [40, ALL_RECORDED])
def test_as_many_workers_in_one_snapshot_as_stand_out_of_more_lack_none(workers: int) -> None:
    """The others of that step come with the next one."""
    tracks = {f"generator/{n}": Track() for n in range(workers)}
    for step in range(20):
        for n, track in enumerate(tracks.values()):
            track.add(step, step + 0.5 * (step == 5 and n >= MOST_EXTREME), 1.0)
    assert may_lack_until(tracks) == -1


def test_a_journal_of_before_that_had_the_extreme_ones_of_each_step_lacks_some() -> None:
    tracks = {f"generator/{n}": Track() for n in range(40)}
    for step in range(20):
        for n, track in enumerate(tracks.values()):
            if step >= 10 or (n + step) % len(tracks) < MOST_EXTREME:
                track.add(step, step, 1.0)
    assert may_lack_until(tracks) == 9
