"""Programs drawn from a seed: roles, sizes, phases, pace, and names of their own.

lockstep   makers -> (scorers) -> learners -> weights, each waits for all of the stage before
colocated  the same with one role, whose ranks do everything
rollouts   makers and environments in turn, scorers, a critic beside the learners (PPO)
queue      makers work ahead into a buffer, learners take from it; weights are pulled
"""

import random
from dataclasses import dataclass, field
from enum import StrEnum

from exams.first.events import Who


class Topology(StrEnum):
    LOCKSTEP = "lockstep"
    COLOCATED = "colocated"
    ROLLOUTS = "rollouts"
    QUEUE = "queue"


class Job(StrEnum):
    """Kind of work of a stage."""

    GENERATION = "generation"
    ENVIRONMENT = "environment"
    REWARD = "reward"
    LOADING = "loading"
    TRAINING = "training"
    SYNC = "sync"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class Stage:
    """Part of a step.

    Attributes:
        job: Kind of work.
        role: Who does it.
        phase: Its name.
        usual_s: Usual time of one worker.
        scales: Whether its time grows with the tokens of a step.
        every: Steps between two of it.
        only_first: Whether only the first worker of the role does it.
    """

    job: Job
    role: str
    phase: str
    usual_s: float
    scales: bool = True
    every: int = 1
    only_first: bool = False


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        seed: Of everything random in its runs.
        topology: The topology.
        stages: In order.
        sizes: Workers of each role.
        steps: Number of steps.
        noise: Sigma of the logarithm of every time.
        drift: The same of the machine's slow moments, which all share.
        warm_up: Slow first steps.
        need: Items of a step of a queue.
        room: Items that the buffer keeps.
        calls: Whether makers call scorers, and both measure the calls.
        tokens: Of a usual step.
        samples: Of a usual step.
        waits: Name of the learners' wait for samples, and for each other.
    """

    seed: int
    topology: Topology
    stages: tuple[Stage, ...]
    sizes: dict[str, int]
    steps: int
    noise: float
    drift: float
    warm_up: int
    need: int = 1
    room: int = 4
    calls: bool = False
    tokens: float = 1e5
    samples: int = 64
    waits: tuple[str, str] = ("wait_for_batch", "rank_barrier")
    maker: str = ""
    scorer: str = ""
    learner: str = ""
    buffer: str = ""
    conventional: bool = False
    usual_step_s: float = field(default=0.0)

    def workers(self, role: str | None = None) -> list[Who]:
        roles = self.sizes if role is None else [role]
        return [Who(each, index) for each in roles for index in range(self.sizes[each])]

    def stage_of(self, job: Job) -> Stage | None:
        return next((stage for stage in self.stages if stage.job is job), None)


# Words that programs use: role, phase. The first of each line are those of the conventions.
_MAKERS = (
    ("generator", "generate"),
    ("rollout_worker", "rollout"),
    ("actor", "generate_sequences"),
    ("sampler", "sample_responses"),
    ("explorer", "decode"),
    ("vllm_engine", "engine_generate"),
)
_ENVS = (("env", "env_step"), ("environment", "tool_call"), ("sandbox", "env_execute"))
_SCORERS = (
    ("reward", "reward"),
    ("reward_model", "compute_scores"),
    ("verifier", "verify_answers"),
    ("judge", "judge_batch"),
    ("grader", "grading"),
)
_LEARNERS = (
    ("trainer", "train"),
    ("learner", "update_policy"),
    ("policy", "optimizer_step"),
    ("actor_train", "train_batch"),
    ("ppo", "backward_pass"),
)
_CRITICS = (("critic", "train_critic"), ("value_model", "update_value_fn"))
_ALL_IN_ONE = (("trainer", ""), ("worker_group", ""), ("rank", ""))
_SYNCS = ("weight_sync", "update_weights", "broadcast_weights", "sync_params", "reload_weights")
_LOADS = ("fetch_data", "load_batch", "dataloader_next", "read_prompts")
_SAVES = ("checkpoint", "save_ckpt", "save_checkpoint", "save_state")
_EVALS = ("evaluation", "validate", "eval_loop", "run_eval")
_BUFFERS = ("replay_buffer", "experience_queue", "buffer")
_WAITS = (("collector_wait", "rank_barrier"), ("wait_for_batch", "allreduce_wait"))


def drawn(chance: random.Random, topology: Topology | None = None) -> Program:
    """Draw a program."""
    topology = topology or chance.choice([*Topology])
    conventional = chance.random() < 0.35
    largest = chance.choice((6, 12, 24, 40))
    pace_s = 10 ** chance.uniform(0.1, 1.3)

    def words(choices: tuple[tuple[str, str], ...]) -> tuple[str, str]:
        return choices[0] if conventional else chance.choice(choices)

    maker, making = words(_MAKERS)
    scorer, scoring = words(_SCORERS)
    learner, learning = words(_LEARNERS)
    if topology is Topology.COLOCATED:
        maker = scorer = learner = words(_ALL_IN_ONE)[0]
    sizes = _sizes(chance, topology, largest, maker, scorer, learner)

    def seconds(low: float, high: float) -> float:
        return pace_s * chance.uniform(low, high)

    stages = [Stage(Job.GENERATION, maker, making, seconds(0.4, 1.0))]
    if topology is Topology.ROLLOUTS:
        env, acting = words(_ENVS)
        sizes[env] = max(2, sizes[maker] // 2)
        stages.append(Stage(Job.ENVIRONMENT, env, acting, seconds(0.2, 0.6)))
    stages.append(Stage(Job.REWARD, scorer, scoring, seconds(0.15, 0.5)))
    if chance.random() < 0.5:
        loading = chance.choice(_LOADS)
        stages.append(Stage(Job.LOADING, learner, loading, seconds(0.05, 0.15)))
    if topology is Topology.ROLLOUTS:
        critic, valuing = words(_CRITICS)
        sizes[critic] = chance.randint(1, 2)
        stages.append(Stage(Job.TRAINING, critic, valuing, seconds(0.2, 0.4)))
    stages.append(Stage(Job.TRAINING, learner, learning, seconds(0.4, 1.0)))
    sync = _SYNCS[0] if conventional else chance.choice(_SYNCS)
    stages.append(Stage(Job.SYNC, learner, sync, seconds(0.05, 0.2), scales=False))
    if chance.random() < 0.6:
        every = chance.randint(5, 12)
        saving = _SAVES[0] if conventional else chance.choice(_SAVES)
        stages.append(
            Stage(
                Job.CHECKPOINT,
                learner,
                saving,
                seconds(0.3, 1.2),
                scales=False,
                every=every,
                only_first=True,
            )
        )
    steps = chance.randint(45, 90)
    tokens = 10 ** chance.uniform(4, 6)
    return Program(
        seed=chance.getrandbits(32),
        topology=topology,
        stages=tuple(stages),
        sizes=sizes,
        steps=steps,
        noise=10 ** chance.uniform(-2, -0.8),
        drift=chance.choice((0.0, 0.01, 0.03)),
        warm_up=chance.choice((0, 1, 1, 2, 4)),
        need=_need(chance, topology, stages, sizes.get(maker, 1)),
        room=sizes.get(maker, 1) * chance.randint(2, 4),
        calls=topology is not Topology.COLOCATED and chance.random() < 0.5,
        tokens=tokens,
        samples=2 ** chance.randint(5, 10),
        waits=_WAITS[0] if conventional else chance.choice(_WAITS),
        maker=maker,
        scorer=scorer,
        learner=learner,
        buffer=_buffer(chance, topology, sizes, conventional=conventional),
        conventional=conventional,
        usual_step_s=sum(stage.usual_s / stage.every for stage in stages),
    )


def evaluations(chance: random.Random, program: Program) -> Stage:
    """Draw an evaluation of the learners every few steps."""
    seconds = program.usual_step_s * chance.uniform(0.5, 3.0)
    phase = chance.choice(_EVALS)
    return Stage(
        Job.EVALUATION, program.learner, phase, seconds, scales=False, every=chance.randint(6, 15)
    )


def _sizes(
    chance: random.Random, topology: Topology, largest: int, maker: str, scorer: str, learner: str
) -> dict[str, int]:
    if topology is Topology.COLOCATED:
        return {learner: chance.randint(2, largest)}
    makers = chance.randint(1, max(2, largest // 2))
    return {
        maker: makers,
        scorer: chance.randint(1, max(1, largest // 6)),
        learner: chance.randint(1, max(2, largest // 3)),
    }


def _need(chance: random.Random, topology: Topology, stages: list[Stage], makers: int) -> int:
    """Return items of a step so that makers are busy for 60 to 120 % of a step of the learners."""
    if topology is not Topology.QUEUE:
        return 1
    making_s = sum(s.usual_s for s in stages if s.job in {Job.GENERATION, Job.REWARD})
    learning_s = sum(s.usual_s for s in stages if s.job in {Job.LOADING, Job.TRAINING, Job.SYNC})
    return max(1, round(chance.uniform(0.6, 1.2) * makers * learning_s / making_s))


def _buffer(
    chance: random.Random, topology: Topology, sizes: dict[str, int], *, conventional: bool
) -> str:
    if topology is not Topology.QUEUE:
        return ""
    buffer = _BUFFERS[0] if conventional else chance.choice(_BUFFERS)
    sizes[buffer] = 1
    return buffer
