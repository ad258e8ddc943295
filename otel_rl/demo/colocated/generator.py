"""Generator: samples a batch of prompts with the newest policy, and scores the completions."""

import numpy as np

import otel_rl
from otel_rl.demo import task
from otel_rl.demo.colocated.host import Host
from otel_rl.demo.control.messages import Completions, Group
from otel_rl.demo.metrics.telemetry import report_as
from otel_rl.demo.model import Parameters, choose, forward, tokenizer
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
    encoded = [tokenizer.encode(prompt) for prompt in prompts for _ in range(settings.group_size)]
    begins = np.array([len(tokens) for tokens in encoded])
    rows, ends = np.arange(len(encoded)), begins.copy()
    tokens = np.full((len(encoded), settings.shape.positions), tokenizer.PAD, np.int64)
    for row, prompt_tokens in enumerate(encoded):
        tokens[row, : len(prompt_tokens)] = prompt_tokens
    log_probabilities = np.zeros(tokens.shape, np.float32)
    is_open = np.ones(len(encoded), bool)
    ones = np.ones(len(encoded), np.float32)
    for _ in range(settings.max_completion):
        logits, _ = forward(policy, tokens[:, : int(ends.max())])
        chosen = choose(logits[rows, ends - 1], ones, ones, rng)
        tokens[rows[is_open], ends[is_open]] = chosen.tokens[is_open]
        log_probabilities[rows[is_open], ends[is_open]] = chosen.log_probabilities[is_open]
        ends += is_open
        is_open &= chosen.tokens != tokenizer.END
    groups = []
    for place, prompt in enumerate(prompts):
        of_prompt = range(place * settings.group_size, (place + 1) * settings.group_size)
        sampled = [tuple(map(int, tokens[row, begins[row] : ends[row]])) for row in of_prompt]
        completions = Completions(
            prompt,
            tuple(encoded[of_prompt[0]]),
            tuple(sampled),
            tuple(
                tuple(map(float, log_probabilities[row, begins[row] : ends[row]]))
                for row in of_prompt
            ),
            version,
        )
        rewards = tuple(
            task.score(prompt, tokenizer.decode(one), ended=one[-1] == tokenizer.END)
            for one in sampled
        )
        groups.append(Group(completions, rewards))
    return groups
