"""Runs of which nothing but spans tells: these come in bursts, some seconds after their end."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, SpanFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind, Verdict
from otel_rl.diagnose.step_times import between_steps, step_time
from otel_rl.records import ExperimentStatus, WorkerFailure

_NS = 1_000_000_000
RANKS = 8
AT = 40


class Ended(NamedTuple):
    """A span: when it ended, in seconds, its step (0 if it tells none) and its own time."""

    at_s: float
    worker: str
    phase: str
    step: int
    own_s: float
    is_wait: bool = False


def told(spans: Sequence[Ended], until_s: float, *, is_silent: bool = False) -> RunHistory:
    """A run whose processes export their spans every five seconds, each at a time of its own.

    If it is silent in the end, the bridge has given up all of its workers.
    """
    workers = sorted({one.worker for one in spans})
    offsets = {worker: random.Random(worker).random() * 5 for worker in workers}
    come = sorted(
        (offsets[one.worker] + 5 * (1 + (one.at_s - offsets[one.worker]) // 5), one)
        for one in spans
    )
    facts, place = [], 0
    for second in range(int(until_s)):
        taken: list[Ended] = []
        while place < len(come) and come[place][0] <= second:
            taken.append(come[place][1])
            place += 1
        facts.append(
            Facts(
                (1_000 + second) * _NS,
                0,
                spans=[
                    SpanFacts(
                        one.step, *_place(one), one.worker, one.is_wait, 1, one.own_s, one.own_s, 0
                    )
                    for one in taken
                ],
                status=ExperimentStatus.RUNNING,
            )
        )
    if is_silent:
        end_ns = facts[-1].time_ns
        gone = [WorkerFailure(worker, end_ns, reports_ends=False) for worker in workers]
        facts[-1] = facts[-1]._replace(failures=gone, status=ExperimentStatus.COMPLETE)
    return RunHistory(Facts.decode(one.encode()) for one in facts)


def _place(one: Ended) -> tuple[str, str]:
    return one.worker.partition("/")[0], one.phase


def ranks(
    all_reduce_s: Callable[[int], float], steps: int = 80, *, stuck: int | None = None
) -> RunHistory:
    """Ranks that roll out and update in each step; of a run that stops, one is in its update."""
    chance, spans, begin_s = random.Random(7), [], 0.0
    for step in range(1, steps + 1):
        rolled = [4.0 * chance.gauss(1, 0.03) for _ in range(RANKS)]
        updated = [3.0 * chance.gauss(1, 0.03) for _ in range(RANKS)]
        met_s = begin_s + max(map(sum, zip(rolled, updated, strict=True)))
        end_s = met_s + all_reduce_s(step)
        for rank, (roll_s, update_s) in enumerate(zip(rolled, updated, strict=True)):
            worker, done_s = f"trainer/{rank}", begin_s + roll_s + update_s
            spans.append(Ended(begin_s + roll_s, worker, "rollout", step, roll_s))
            if stuck is not None and step == steps:
                if rank != stuck:
                    spans.append(Ended(done_s, worker, "update", step, update_s))
                continue
            spans.append(Ended(done_s, worker, "update", step, update_s))
            spans.append(Ended(end_s, worker, "all_reduce", step, end_s - done_s, is_wait=True))
            spans.append(Ended(end_s, worker, "train_step", step, 0.0))
        begin_s = end_s
    return told(spans, begin_s + 20, is_silent=stuck is not None)


def test_the_own_times_of_a_step_add_up_to_it_whenever_its_spans_come() -> None:
    history = ranks(lambda _: 0.5)
    known, news = step_time(history).values, between_steps(history).values
    assert max(known) - min(known) < 1.0 < max(news) - min(news)
    assert 7.5 < sorted(known)[len(known) // 2] < 8.5


def test_a_collective_that_takes_longer_is_found_though_spans_come_in_bursts() -> None:
    report = diagnose(ranks(lambda step: 2.5 if step >= AT else 0.5))
    (cause,) = report.causes
    assert (cause.kind, cause.phase) == (Kind.SLOW_PHASE, "all_reduce")
    assert cause.since is not None
    assert abs(cause.since - AT) <= 3
    assert not diagnose(ranks(lambda _: 0.5)).causes


def test_who_came_to_no_end_of_what_its_peers_did_is_told_of_a_silent_run() -> None:
    report = diagnose(ranks(lambda _: 0.5, 40, stuck=2), silent_s=300.0)
    assert report.verdict is Verdict.CANNOT_TELL
    assert any("trainer/2 had come to no end of update" in doubt for doubt in report.doubts)


def scored(steps: int = 60, *, stopped: str = "reward") -> RunHistory:
    """Two trainers that wait for samples, which generators make and a scorer scores.

    One role stops at the end; the generators go on.
    """
    chance, spans, begin_s = random.Random(5), [], 0.0
    for step in range(1, steps + 1):
        for index in range(4):
            at_s, scored_s = begin_s + 1.0 + index / 2, begin_s + 1.4 + index / 2
            spans.append(Ended(at_s, f"generator/{index}", "rollout", 0, 6.0))
            spans.append(Ended(scored_s, "reward/0", "score", 0, 0.8 * chance.gauss(1, 0.05)))
        for index in range(2):
            worker, got_s = f"trainer/{index}", begin_s + 3.0
            spans.append(Ended(got_s, worker, "wait_for_batch", step, 3.0, is_wait=True))
            spans.append(Ended(got_s + 3.0, worker, "update", step, 3.0))
            spans.append(Ended(got_s + 3.5, worker, "train_step", step, 0.5))
        begin_s += 6.5
    for later in range(120):
        spans.append(Ended(begin_s + 1.5 * later, f"generator/{later % 4}", "rollout", 0, 6.0))
        if stopped == "trainer":
            spans.append(Ended(begin_s + 1.5 * later + 0.4, "reward/0", "score", 0, 0.8))
    return told(spans, begin_s + 180)


def test_trainers_that_wait_for_samples_do_not_hold_up_who_makes_them() -> None:
    (cause,) = diagnose(scored()).causes
    assert (cause.kind, cause.worker, cause.phase) == (Kind.STALL, "reward/0", "score")
    (cause,) = diagnose(scored(stopped="trainer")).causes
    assert (cause.kind, cause.role, cause.phase) == (Kind.STALL, "trainer", "update")
