"""Generator: samples a batch of prompts with the newest policy, and scores the completions."""

import numpy as np

import otel_rl
from otel_rl.demo import task
from otel_rl.demo.colocated.host import Host
from otel_rl.demo.control.messages import Completions, Group
from otel_rl.demo.metrics.telemetry import report_as
from otel_rl.demo.model import DecodeBatch, Job, KvCache, Parameters, tokenizer
from otel_rl.demo.processes.reward import rewards_of
from otel_rl.demo.settings import DemoSettings

__all__ = ["generate"]


def generate(host: Host, settings: DemoSettings) -> None:
    """Take every other turn until the run is over."""
    report_as("generator", index=0, count=1)
    rng = np.random.default_rng(settings.seed + 1)
    for step in range(1, settings.steps + 1):
        with host.turn("generator", then="trainer"), otel_rl.step(step):
            with otel_rl.phase("weight_pull", gpu=True):
                policy = Parameters(settings.shape, host.onload())
            with otel_rl.phase("generate", gpu=True):
                groups = _groups(policy, settings, rng, version=step - 1)
            rewards = [reward for group in groups for reward in group.rewards]
            tokens = sum(len(one) for group in groups for one in group.completions.tokens)
            otel_rl.log({"reward/mean": float(np.mean(rewards)), "tokens": tokens})
            with otel_rl.phase("offload", gpu=True):
                del policy
                host.hand_over(groups)


def _groups(
    policy: Parameters, settings: DemoSettings, rng: np.random.Generator, *, version: int
) -> list[Group]:
    """Generate completions of new prompts, all sampled in parallel, token by token."""
    prompts = [
        task.prompt(rng, min_digits=settings.min_digits, max_digits=settings.max_digits)
        for _ in range(settings.groups_per_rank * settings.trainers)
    ]
    jobs = [
        Job(tokenizer.encode(prompt), settings.group_size, settings.max_completion, 1.0, 1.0)
        for prompt in prompts
    ]
    cache = KvCache(len(jobs) * settings.request_tokens)  # all fit
    batch = DecodeBatch(cache, policy, tokenizer.END, rng)
    for job in jobs:
        batch.add(job)
    batch.run()
    groups = []
    for place, prompt in enumerate(prompts):
        completions = Completions(
            prompt,
            tuple(jobs[place].prompt),
            batch.completions(place),
            batch.log_probabilities(place),
            version,
        )
        groups.append(Group(completions, rewards_of(completions)))
    return groups
