"""What teams do with healthy runs, which no exam draws: no look names a cause."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from exams.first.changes import LargerBatch
from exams.first.effects import Effect, Measure
from exams.first.events import Who
from exams.first.programs import Job, Program, Stage, Topology
from tests.support.slow import slow_after
from tests.unit.diagnose.looked import looks

_SEEDS = slow_after(1, range(1, 5))


@dataclass(frozen=True)
class Curriculum(Effect):
    """Tasks whose answers become longer every dozen steps."""

    def tokens(self, step: int) -> float:
        return 1.3 ** min(4, step // 12)


@dataclass(frozen=True)
class WarmRestarts(Effect):
    """Learning rate that is raised every 15 steps: losses and gradients jump, and come down."""

    def value(self, measure: Measure, who: Who, step: int, usual: float) -> float:
        bumps = {Measure.LOSS: 2.5, Measure.GRAD: 2.5, Measure.KL: 1.0}
        bump = bumps.get(measure, 0.0) if step >= 15 else 0.0
        return usual * (1 + bump * math.exp(-(step % 15) / 2))


@dataclass(frozen=True)
class EvaluationByTheMakers(Effect):
    """Every ten steps, makers also write long answers to other tasks."""

    def extra_s(self, who: Who, stage: Stage, step: int) -> float:
        return 2 * stage.usual_s if stage.job is Job.GENERATION and step and not step % 10 else 0.0


@dataclass(frozen=True)
class Upload(Effect):
    """The first learner has saved, and sends what it saved during the next five steps."""

    learner: str

    def factor(self, who: Who, stage: Stage, step: int) -> float:
        is_sending = step >= 20 and step % 20 < 5
        return 1.15 if is_sending and who == Who(self.learner, 0) else 1.0


class StopsEarly(Effect):
    """One to four epochs in a step, until the policy has moved far enough."""

    def __init__(self, learner: str) -> None:
        chance = random.Random(learner)
        self._learner = learner
        self._epochs = [chance.choice((2, 3, 4, 4)) for _ in range(100)]

    def factor(self, who: Who, stage: Stage, step: int) -> float:
        is_its_own = stage.job is Job.TRAINING and stage.role == self._learner
        return self._epochs[step] / 3 if is_its_own else 1.0


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize(
    "effect",
    [
        pytest.param(lambda program: [Curriculum()], id="curriculum"),
        pytest.param(lambda program: [WarmRestarts()], id="warm restarts"),
        pytest.param(lambda program: [EvaluationByTheMakers()], id="evaluation by the makers"),
        pytest.param(lambda program: [Upload(program.learner)], id="upload of a checkpoint"),
        pytest.param(lambda program: [LargerBatch(25, 2.0)], id="batch of twice the size"),
        pytest.param(lambda program: [LargerBatch(25, 0.25)], id="batch of a quarter"),
    ],
)
def test_no_look_at_a_healthy_run_names_a_cause(
    seed: int, effect: Callable[[Program], Sequence[Effect]]
) -> None:
    assert [str(one.causes) for one in looks(seed, effect) if one.causes] == []


@pytest.mark.parametrize("seed", _SEEDS)
def test_epochs_that_stop_early_make_no_step_late(seed: int) -> None:
    """Without a queue, whose samples are indeed older after longer steps."""
    found = looks(seed, lambda program: [StopsEarly(program.learner)], but=[Topology.QUEUE])
    assert [str(one.causes) for one in found if one.causes] == []
