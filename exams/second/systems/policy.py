"""Values of the learning itself: rewards, entropy, KL, loss, over the steps."""

import math
import random

from exams.second.systems.world import Worker, World
from exams.second.trouble import Trouble, What


def report(worker: Worker, step: int, *, all_ranks: bool) -> None:
    """Report what a trainer knows after an update."""
    world = worker.world
    chance = random.Random(f"{world.program.seed} {step} {worker.index}")
    values = _values(world, step, chance)
    nan = [one for one in world.troubles.of(What.NAN) if step >= one.step]
    for one in nan:  # the rank's own gradient first, then everybody's weights
        if one.index == worker.index or step > one.step:
            values |= {"loss": math.nan, "grad_norm": math.nan}
    for one in world.troubles.of(What.BLIP):
        if one.step <= step < one.step + 2:
            values |= {"loss": math.nan, "grad_norm": math.nan}
    for name, value in values.items():
        if all_ranks or worker.index == 0:
            worker.value(name, value, step)
    if all_ranks or worker.index == 0:
        for name, value in _checks(world, step, worker.index).items():
            worker.value(name, value, step)
    _tokens(worker, step, chance, is_told=all_ranks or worker.index == 0)


def _checks(world: World, step: int, index: int) -> dict[str, float]:
    """Return what a program measures beside the learning, with noise of its own."""
    chance = random.Random(f"checks {world.program.seed} {step} {index}")
    share, tricked = step / world.program.steps, _tricked(world, step)
    gap = 0.012 * math.exp(chance.gauss(0, 0.1)) * (1 + 0.3 * share)
    for one in world.troubles.of(What.GAP):
        gap *= one.size if step >= one.step else 1
    for one in world.troubles.of(What.GAP_GROWS):
        gap *= 1 + (one.size - 1) * share
    dead = {what: _so_far(world, what, step, 8) for what in (What.DEAD, What.SOLVED)}
    repeated = max(0.0, 0.03 + 0.02 * share + 0.35 * tricked + chance.gauss(0, 0.006))
    checks = {"gap": gap, "gap_kl": gap * gap * 6, "repeated": repeated}
    if any(world.troubles.of(what) for what in dead):
        share = 0.2 + 0.65 * sum(dead.values()) + chance.gauss(0, 0.03)
        checks["frac_reward_zero_std"] = min(1.0, max(0.0, share))
    if step % 4 == 3:
        held_out = 0.15 + 0.35 * (1 - math.exp(-3 * share)) + 0.15 * _leapt(world, step)
        checks["held_out"] = held_out * (1 - 0.5 * tricked) + chance.gauss(0, 0.015)
    return checks


def _tricked(world: World, step: int) -> float:
    return _so_far(world, What.HACK, step, 12)


def _leapt(world: World, step: int) -> float:
    return _so_far(world, What.LEAP, step, 10)


def _so_far(world: World, what: What, step: int, within: int) -> float:
    """Return how far all slow changes of a kind have come."""
    steps = world.program.steps
    return sum(_since(one, step, steps, within) for one in world.troubles.of(what))


def _values(world: World, step: int, chance: random.Random) -> dict[str, float]:
    steps = world.program.steps
    share = step / steps
    reward = 0.2 + 0.4 * (1 - math.exp(-3 * share))
    std = 0.4
    for one in world.troubles.of(What.REWARD_FALL):
        reward -= 0.8 * reward * _since(one, step, steps, 10)
    for one in world.troubles.of(What.REWARD_JUMP):
        reward += 1.5 * (step >= one.step)
    reward += 0.3 * _tricked(world, step) + 0.25 * _leapt(world, step)
    reward += (0.95 - reward) * _so_far(world, What.SOLVED, step, 8)
    reward -= 0.2 * reward * _so_far(world, What.DEAD, step, 8)
    reward += sum(0.08 * math.sin(2 * math.pi * step / 17) for _ in world.troubles.of(What.SEASON))
    reward += chance.gauss(0, 0.015)
    if any(step >= one.step for one in world.troubles.of(What.REWARD_CONSTANT)):
        reward, std = 1.0, 0.0
    entropy = 0.9 - 0.25 * share
    for one in world.troubles.of(What.ENTROPY):
        entropy *= 1 - 0.95 * _since(one, step, steps, 14)
    kl = 0.002 + 0.01 * share
    for one in world.troubles.of(What.KL):
        kl *= math.exp(4 * _since(one, step, steps, 14))
    lr = 1e-6
    for one in world.troubles.of(What.LR):
        lr *= one.size if step >= one.step else 1
    return {
        "loss": 0.05 * math.exp(-share) + chance.gauss(0, 0.004),
        "entropy": max(0.001, entropy + chance.gauss(0, 0.012 * entropy)),
        "kl": kl * math.exp(chance.gauss(0, 0.12)),
        "reward": reward,
        "reward_std": std * math.exp(chance.gauss(0, 0.04)),
        "grad_norm": 0.6 * math.exp(chance.gauss(0, 0.1)),
        "lr": lr,
        "length": 900 * world.length(step) * math.exp(chance.gauss(0, 0.03)),
    }


def _since(one: Trouble, step: int, steps: int, within: int) -> float:
    """Return how far a slow change has come, from 0 to 1."""
    return max(0.0, min(1.0, (step - one.step) / min(within, max(1, steps - one.step))))


def _tokens(worker: Worker, step: int, chance: random.Random, *, is_told: bool) -> None:
    world = worker.world
    if is_told:
        mean = 900 * world.length(step) * world.batch(step) * 64
        mean *= world.share_of(worker.role, worker.index, step)
        tokens = round(mean * math.exp(chance.gauss(0, 0.02)))
        if world.program.telemetry.names in ("verl", "slime"):  # they log numbers of steps
            worker.value("tokens", tokens, step)
        else:
            worker.count("tokens", tokens)
        worker.value("version", step, step)
