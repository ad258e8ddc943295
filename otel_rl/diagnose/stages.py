"""What part of the pipeline a piece of work is of, whatever its role and phase are called.

Where a phase is of one part only, it decides: a trainer that generates, because the same devices do
both, generates. Else the role does, by the registry's roles. A role that is not in the registry
trains if its steps are the run's, and makes samples if not.
"""

from collections.abc import Mapping
from typing import Final

from otel_rl.semconv.names import RlPhaseValues, RlStageValues, RlWorkerRoleValues

__all__ = ["stage_of"]

_OF_PHASE: Final[Mapping[str, str]] = {
    RlPhaseValues.ACTION_SELECT: RlStageValues.GENERATOR,
    RlPhaseValues.BATCH_CREATE: RlStageValues.TRAINER,
    # What it waited for is not known, or it would not stand for itself.
    RlPhaseValues.COLLECTOR_WAIT: RlStageValues.GENERATOR,
    RlPhaseValues.GENERATE: RlStageValues.GENERATOR,
    RlPhaseValues.H2D_COPY: RlStageValues.TRAINER,
    RlPhaseValues.IDLE: RlStageValues.IDLE,
    RlPhaseValues.PARAM_SYNC: RlStageValues.TRAINER,
    RlPhaseValues.RANK_BARRIER: RlStageValues.TRAINER,
    RlPhaseValues.REPLAY: RlStageValues.BUFFER,
    RlPhaseValues.REPLAY_BATCH_WAIT: RlStageValues.BUFFER,
    RlPhaseValues.REWARD: RlStageValues.REWARD,
    RlPhaseValues.SYNC_COORDINATION: RlStageValues.SYNC,
    RlPhaseValues.TRAIN: RlStageValues.TRAINER,
    RlPhaseValues.WEIGHT_PULL: RlStageValues.SYNC,
    RlPhaseValues.WEIGHT_PUSH: RlStageValues.SYNC,
    RlPhaseValues.WEIGHT_SYNC: RlStageValues.SYNC,
}

_OF_ROLE: Final[Mapping[str, str]] = {
    RlWorkerRoleValues.CRITIC: RlStageValues.TRAINER,
    RlWorkerRoleValues.ENV: RlStageValues.GENERATOR,
    RlWorkerRoleValues.GENERATOR: RlStageValues.GENERATOR,
    RlWorkerRoleValues.ORCHESTRATOR: RlStageValues.SYNC,
    RlWorkerRoleValues.REFERENCE: RlStageValues.TRAINER,
    RlWorkerRoleValues.REPLAY_BUFFER: RlStageValues.BUFFER,
    RlWorkerRoleValues.REWARD: RlStageValues.REWARD,
    RlWorkerRoleValues.TRAINER: RlStageValues.TRAINER,
}


def stage_of(role: str, phase: str, stepping_role: str) -> str:
    """The part of the pipeline, of ``rl.stage``.

    Args:
        role: Of the worker.
        phase: What it did.
        stepping_role: The role whose steps are the run's.
    """
    found = _OF_PHASE.get(phase) or _OF_ROLE.get(role)
    if found is not None:
        return str(found)
    return str(RlStageValues.TRAINER if role == stepping_role else RlStageValues.GENERATOR)
