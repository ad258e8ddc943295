"""Reads how a rollout ended from results of two libraries: NeMo Gym and verifiers.

    lineage.score(sample, **nemo_gym(result))
    lineage.score(sample, **verifiers(trace))

Neither package is imported. A result is what the package returns or writes to its files: a mapping,
as read from JSON, or an object with these attributes. Missing fields are left out, and a result of
another form gives nothing and raises no error.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from otel_rl.integrations.adapter import DropReason, guard
from otel_rl.semconv.outcomes import Outcome

__all__ = ["RolloutResult", "nemo_gym", "verifiers"]


class RolloutResult(TypedDict, total=False):
    """Arguments of ``lineage.score``."""

    reward: float
    length: int
    outcome: str
    reason: str
    environment: str
    group: str
    components: Mapping[str, float]


_GRADERS: Final = re.compile(r"judge|grad(e|ing)|verif|scor|reward|eval(?!_?timeout)")
_TIMEOUTS: Final = re.compile(r"time_?d?[ _-]?out|deadline")
_CANCELS: Final = re.compile(r"cancel|abort")
_LIMITS: Final = frozenset(
    {
        "max_iteration",
        "context_window",
        "max_turns",
        "max_input_tokens",
        "max_output_tokens",
        "max_total_tokens",
        "compaction_failed",
    }
)
"""Reasons for which a rollout ends before the policy has finished."""

_NESTED: Final = ("instance_config", "full_result", "metrics")
"""Fields of a NeMo Gym result in which agents keep what they tell of a failure."""


def nemo_gym(result: object) -> RolloutResult:
    """Return what a rollout of NeMo Gym says about its end.

    A sample that failed and is not to be masked keeps its reward: it enters training with the
    reward, and is counted as poisoned.

    Args:
        result: Answer of a verification, or a line of the rollouts' file: ``reward``,
            ``mask_sample``, ``failure_kind``, ``failure_reason``, and ``error_kind``,
            ``agent_error_kind``, ``agent_timed_out``, ``eval_timed_out`` of agents.
    """
    told = RolloutResult()
    reward = _number(_of(result, "reward"))
    if reward is not None:
        told["reward"] = reward
    why = _why_failed(result)
    limit = _text(_anywhere(result, "agent_error_kind"))
    stopped = _text(_of(_of(_of(result, "response"), "incomplete_details"), "reason"))
    limit = next((one for one in (limit, stopped) if one in _LIMITS), "")
    if _anywhere(result, "mask_sample"):
        told["outcome"] = Outcome.MASKED.value
        why = why or limit
    elif why:
        told["outcome"] = _failure(why).value
    elif limit:
        told["outcome"], why = Outcome.TRUNCATED.value, limit
    elif reward is not None:
        told["outcome"] = Outcome.TRAINED.value
    if why:
        told["reason"] = why
    length = _of(_of(_of(result, "response"), "usage"), "output_tokens")
    if isinstance(length, int):
        told["length"] = length
    if environment := _text(_of(_of(result, "agent_ref"), "name")):
        told["environment"] = environment
    if (task := _of(result, "_ng_task_index")) is not None:
        told["group"] = str(task)
    if components := _numbers(_of(result, "reward_components")):
        told["components"] = components
    return told


def verifiers(trace: object) -> RolloutResult:
    """Return what a ``Trace`` of verifiers, or its record, says about its end.

    A failed trace that was not scored has no reward: whether it trains is for the framework to say.

    Args:
        trace: A trace of version 1: ``rewards``, ``ok``, ``stop_condition``, ``is_timeout``,
            ``errors``.
    """
    told = RolloutResult()
    rewards = _of(trace, "rewards")
    scored: dict[str, float] = {}
    is_scored = isinstance(rewards, Mapping) and bool(rewards)
    for name, one in rewards.items() if isinstance(rewards, Mapping) else ():
        score, weight = _number(_of(one, "score")), _number(_of(one, "weight"))
        if score is None:
            is_scored = False
        else:
            scored[str(name)] = score * (1.0 if weight is None else weight)
    if is_scored:
        told["reward"] = sum(scored.values())
        if len(scored) > 1:
            told["components"] = scored
    stop, errors = _text(_of(trace, "stop_condition")), _of(trace, "errors")
    last = _text(_of(errors[-1], "type")) if isinstance(errors, list) and errors else ""
    if _of(trace, "is_timeout"):
        told["outcome"], told["reason"] = Outcome.TIMEOUT.value, stop or "timeout"
    elif not _of(trace, "ok") and last:
        is_grader = (
            last == "TaskError" and isinstance(rewards, Mapping) and None in rewards.values()
        )
        told["outcome"] = (Outcome.GRADER_FAILED if is_grader else Outcome.ENVIRONMENT_FAILED).value
        told["reason"] = last
    elif _of(trace, "is_truncated") or stop in _LIMITS:
        told["outcome"], told["reason"] = Outcome.TRUNCATED.value, stop or "length"
    elif is_scored:
        told["outcome"] = Outcome.TRAINED.value
    length = _of(trace, "num_output_tokens")
    if isinstance(length, int):
        told["length"] = length
    task = _of(trace, "task")
    if environment := _text(_of(task, "type")):
        told["environment"] = environment
    if group := _text(_of(task, "key")) or _text(_of(task, "hash")):
        told["group"] = group
    return told


def _why_failed(result: object) -> str:
    """Return why the infrastructure of a NeMo Gym rollout failed; empty if it did not."""
    for name in ("failure_kind", "error_kind"):
        if why := _text(_anywhere(result, name)):
            return why
    for name in ("agent_timed_out", "eval_timed_out"):
        if _anywhere(result, name):
            return name
    # For people: what follows a colon differs from one rollout to the next.
    return _text(_anywhere(result, "failure_reason")).partition(":")[0]


def _failure(why: str) -> Outcome:
    words = why.lower()
    if _CANCELS.search(words):
        return Outcome.CANCELLED
    if _TIMEOUTS.search(words):
        return Outcome.TIMEOUT
    return Outcome.GRADER_FAILED if _GRADERS.search(words) else Outcome.ENVIRONMENT_FAILED


def _anywhere(result: object, name: str) -> Any:
    """Return a field of the result, or of the parts in which agents keep it."""
    places = (result, *(_of(result, part) for part in _NESTED))
    return next((found for place in places if (found := _of(place, name)) is not None), None)


def _of(owner: object, name: str) -> Any:
    try:
        return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
    except Exception as error:  # noqa: BLE001  # a property may do anything
        guard.drop(
            DropReason.BAD_SAMPLE,
            f"A result of an environment raises {type(error).__name__} when asked for {name!r}.",
        )
        return None


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond floats
        return math.inf if value > 0 else -math.inf


def _numbers(values: object) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    found = {str(name): _number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}
