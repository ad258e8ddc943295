"""Variant of the demo with training and generation on one device, in turns. On-policy GRPO.

``python -m otel_rl.demo.colocated DIRECTORY`` starts two processes, a generator and a trainer. The
one without the turn holds nothing "on the device": it has offloaded to shared memory, and reloads
from there at its next turn. A turn's metrics are recorded before the hand-over, so that they do
not depend on the other process.
"""

import json
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_float
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import RawArray
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from time import monotonic

import numpy as np

import otel_rl
from otel_rl.demo import task, tokenizer
from otel_rl.demo.decoding import choose
from otel_rl.demo.grpo import Learner, pack
from otel_rl.demo.messages import Completions, Group
from otel_rl.demo.metrics import report_as
from otel_rl.demo.result import RESULT_FILE, DemoResult
from otel_rl.demo.settings import DemoSettings
from otel_rl.demo.transformer import Floats, Parameters, forward

__all__ = ["REWARDS_FILE", "Host", "generate", "train"]

OTHER_TIMEOUT_S = 120.0
"""A turn takes a fraction of a second; a longer wait means that the other process has ended."""


class Host:
    """Shared memory and queue. Made by the parent, passed to both processes.

    Args:
        context: Start context of the processes.
        settings: Of the run.
        rng: Source of the first weights.
    """

    def __init__(
        self, context: SpawnContext, settings: DemoSettings, rng: np.random.Generator
    ) -> None:
        first = Parameters.random(settings.shape, rng)
        self._weights = RawArray(c_float, len(first.flat))
        self._turns: dict[str, Semaphore] = {
            "generator": context.Semaphore(1),
            "trainer": context.Semaphore(0),
        }
        self._samples: Queue[Sequence[Group]] = context.Queue()
        self.offload(first.flat)

    @contextmanager
    def turn(self, role: str, *, then: str) -> Iterator[None]:
        """Wait for the turn of ``role``; pass it to ``then`` at the end of the block.

        Raises:
            TimeoutError: The other process does not end its turn.
        """
        if not self._turns[role].acquire(timeout=OTHER_TIMEOUT_S):
            raise TimeoutError(f"the {role} timed out waiting for its turn")
        yield
        self._turns[then].release()

    def offload(self, flat: Floats) -> None:
        """Copy weights from the device to shared memory."""
        np.copyto(np.frombuffer(memoryview(self._weights), np.float32), flat)

    def onload(self) -> Floats:
        """Copy the weights from shared memory to the device."""
        return np.frombuffer(memoryview(self._weights), np.float32).copy()

    def hand_over(self, groups: Sequence[Group]) -> None:
        """Send samples to the trainer, without waiting for it."""
        self._samples.put(tuple(groups))

    def taken_over(self) -> Sequence[Group]:
        """Return the samples of the previous turn."""
        return self._samples.get(timeout=OTHER_TIMEOUT_S)


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


REWARDS_FILE = "rewards.json"


def train(host: Host, settings: DemoSettings, work_dir: Path) -> None:
    """Take every other turn until the run is over."""
    report_as("trainer", index=0, count=1, config=settings.hyper_parameters, tags=["colocated"])
    learner = Learner(settings, host.onload().tobytes())
    rewards: list[float] = []
    begun_s = monotonic()
    for step in range(1, settings.steps + 1):
        with host.turn("trainer", then="generator"), otel_rl.step(step):
            groups = host.taken_over()
            with otel_rl.phase("batch_create"):
                batch = pack(groups, length=settings.shape.positions)
            with otel_rl.phase("h2d_copy", gpu=True):
                np.copyto(learner.policy.flat, host.onload())
            with otel_rl.phase("reference", gpu=True):
                reference = learner.reference_logits(batch)
            with otel_rl.phase("train", gpu=True):
                outcome, gradient = learner.gradient(batch, reference)
                update = learner.update(gradient, step=step)
            rewards.append(float(np.mean([r for group in groups for r in group.rewards])))
            figures = {
                "rl.train.loss": outcome.loss,
                "rl.policy.kl.reference": outcome.kl,
                "rl.policy.entropy": outcome.entropy,
                "rl.reward.mean": rewards[-1],
                "rl.train.learning_rate": update.rate,
                "rl.policy.version": step,
            }
            # Before the hand-over: the step is reported whatever the other process does.
            otel_rl.log(figures)
            with otel_rl.phase("weight_push", gpu=True):
                host.offload(learner.policy.flat)
        print(f"step {step:3d}  reward {rewards[-1]:.2f}  loss {outcome.loss:+.3f}", flush=True)
    totals = {"rewards": rewards, "duration_s": monotonic() - begun_s}
    (work_dir / REWARDS_FILE).write_text(json.dumps(totals))


_END_S = 10.0  # for the last export of a terminated process


def main(work_dir: Path) -> None:
    """Run with the settings in the directory, and write the result there."""
    # Without it the processes would outlive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    settings = DemoSettings.model_validate_json((work_dir / "settings.json").read_text())
    (work_dir / REWARDS_FILE).unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    host = Host(context, settings, np.random.default_rng(settings.seed))
    processes = [
        context.Process(target=generate, args=(host, settings), name="generator", daemon=True),
        context.Process(target=train, args=(host, settings, work_dir), name="trainer", daemon=True),
    ]
    for process in processes:
        process.start()
    try:
        reason = _wait(processes)
    except KeyboardInterrupt:
        reason = "it was interrupted"
    finally:
        _end(processes)
    result = DemoResult(reason=reason, logs=work_dir)
    if (work_dir / REWARDS_FILE).exists():
        figures = json.loads((work_dir / REWARDS_FILE).read_text())
        result = result.model_copy(
            update={
                "steps": len(figures["rewards"]),
                "rewards": tuple(figures["rewards"]),
                "duration_s": figures["duration_s"],
            }
        )
    (work_dir / RESULT_FILE).write_text(result.model_dump_json())


def _wait(processes: Sequence[SpawnProcess]) -> str:
    """Wait for both. Returns the reason of an early end, or nothing."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = wait(list(running))
        for sentinel in [sentinel for sentinel in running if sentinel in ended]:
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                return f"the {process.name} ended with {process.exitcode}"
    return ""


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_END_S)
        if process.is_alive():
            process.kill()
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
