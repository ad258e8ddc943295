"""Logs of well-known libraries by plain gauges, under the names that they have there.

Their times are found, and what only looks like a time is none.
"""

import random
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Diagnosis, Kind, Verdict
from tests.unit.diagnose.made import Series, changed, made

STEPS, SINCE = 160, 100

# Kinds of series: seconds of rollouts (R), updates (U) or steps (S), their totals (r, u, s),
# milliseconds (m), steps per second (F), of all so far (f), a count (n), a constant (c), returns
# (W), lengths (L), a share that grows (P), noise (z) and an entropy (E).
LOGS: Final[Mapping[str, str]] = {
    "cleanrl": "charts/SPS f, charts/episodic_return W, charts/episodic_length L, "
    "losses/entropy E, losses/approx_kl z, losses/clipfrac z, losses/explained_variance P",
    "stable-baselines3": "time/iterations n, time/time_elapsed s, time/total_timesteps n, "
    "time/fps f, rollout/ep_rew_mean W, rollout/ep_len_mean L, train/entropy_loss E, "
    "train/n_updates n, train/learning_rate c, train/approx_kl z",
    "rllib": "episode_reward_mean W, episode_len_mean L, time_this_iter_s S, time_total_s s, "
    "time_since_restore s, timers/sample_time_ms m, timers/learn_throughput F, episodes_total n",
    "rsl_rl": "Perf/total_fps F, Perf/collection_time R, Perf/learning_time U, "
    "Train/mean_reward W, Train/mean_episode_length L, Train/mean_reward/time W, "
    "Train/mean_episode_length/time L",
    "rl_games": "performance/step_fps F, performance/rl_update_time U, "
    "performance/step_inference_time R, rewards/step W, rewards/iter W, rewards/time W, "
    "episode_lengths/step L, episode_lengths/iter L, episode_lengths/time L, info/epochs n",
    "tianshou": "train/returns_stat/mean W, timing/total_time s, timing/train_time s, "
    "timing/train_time_collect r, timing/train_time_update u, update/gradient_steps n",
    "torchrl": "train/reward W, train/sampling_time R, train/training_time U, "
    "time/timeit/collecting R, time/timeit/training U, time/speed F, time/elapsed s",
    "openrlhf": "train/reward W, timing/make_experience R, timing/ppo_train U, "
    "timing/step_total S, train/response_length c, train/kl z",
    "verl": "critic/rewards/mean W, timing_s/gen R, timing_s/update_actor U, timing_s/step S, "
    "perf/throughput F, perf/total_num_tokens c, training/epoch n, actor/entropy E",
    "trl": "reward W, kl z, entropy E, step_time S, num_tokens n, completions/mean_length c",
}
FINDS_ROLLOUTS: Final = ["rllib", "rsl_rl", "rl_games", "tianshou", "torchrl", "openrlhf", "verl"]


def logged(library: str, *, slower: float = 1.0) -> RunHistory:
    """A run of one process, whose rollouts may take longer from a step on."""
    chance = random.Random(library)
    times = changed(1.6, 1.6 * slower, SINCE)
    rollout = [times(step) * chance.lognormvariate(0, 0.04) for step in range(STEPS)]
    update = [0.6 * chance.lognormvariate(0, 0.04) for _ in range(STEPS)]
    whole = [sum(both) for both in zip(rollout, update, strict=True)]
    so_far = [*accumulate(whole)]
    learned = [step / STEPS for step in range(STEPS)]
    returns = [20 + 200 * (1 - (1 - x) ** 3) + chance.gauss(0, 8) for x in learned]
    kinds: Mapping[str, list[float]] = {
        "R": rollout,
        "U": update,
        "S": whole,
        "r": [*accumulate(rollout)],
        "u": [*accumulate(update)],
        "s": so_far,
        "m": [1e3 * seconds for seconds in rollout],
        "F": [4096 / seconds for seconds in whole],
        "f": [4096 * (step + 1) / at_s for step, at_s in enumerate(so_far)],
        "n": [10.0 * (step + 1) for step in range(STEPS)],
        "c": [400 * chance.lognormvariate(0, 0.03) for _ in range(STEPS)],
        "W": returns,
        "L": [100 + value / 2 + chance.gauss(0, 4) for value in returns],
        "P": learned,
        "z": [0.01 + abs(chance.gauss(0, 0.002)) for _ in range(STEPS)],
        "E": [1.4 - 0.6 * x + chance.gauss(0, 0.02) for x in learned],
    }
    series: dict[str, Series] = {}
    for one in LOGS[library].split(", "):
        name, kind = one.split()
        series[f"trainer/{name}"] = kinds[kind].__getitem__
    history = made(
        STEPS,
        rows=series,
        workers={(key, "trainer/0"): of for key, of in series.items()},
        step_s=whole.__getitem__,
    )
    history.steps.clear()  # there are no spans
    return history


def looked(library: str, *, slower: float = 1.0) -> Diagnosis:
    return diagnose(logged(library, slower=slower), passed=True)


@pytest.mark.parametrize("library", LOGS)
def test_a_healthy_run_of_a_library_has_no_alarm(library: str) -> None:
    report = looked(library)
    assert (report.verdict, report.causes) == (Verdict.HEALTHY, [])


@pytest.mark.parametrize("library", FINDS_ROLLOUTS)
def test_slower_rollouts_are_found_by_the_times_that_a_library_logs(library: str) -> None:
    (cause,) = looked(library, slower=2.2).causes
    assert cause.kind is Kind.SLOW_GENERATION
    assert cause.since is not None
    assert abs(cause.since - SINCE) <= 3


@pytest.mark.parametrize("library", sorted(LOGS.keys() - {*FINDS_ROLLOUTS}))
def test_longer_steps_are_told_where_nothing_else_is_measured(library: str) -> None:
    report = looked(library, slower=2.2)
    assert report.verdict is Verdict.NO_CLEAR_CAUSE
    assert any("a step takes 1.9 times as long" in one for one in report.symptoms)
