"""Metrics of the registry that a program's own names resemble: a chart stands where theirs would.

Only the place of a chart depends on it, and the value that a list shows of a run. Pure.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from otel_rl.records import KeySpec
from otel_rl.semconv import names

_TIME: Final = r"(^|[/_])(time|times|timing|duration|latency|seconds|secs|ms)([/_]|$)"

# A framework logs hundreds, which would stand before everything else.
_STATISTIC: Final = r"[/_](max|min|std|var|median|p\d+|count|sum|total)$"

# Of names in lower case with slashes for dots, the first that matches.
_LIKE: Final = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(^|[/_])(step|iteration|iter)_?(time|duration|seconds)$", names.RL_ITERATION_DURATION),
        (_TIME, ""),
        (_STATISTIC, ""),
        (
            r"(^|[/_])(rew|rewards?|scores?|returns?)([/_](mean|avg))?$",
            names.RL_REWARD_MEAN,
        ),
        (r"rewards?([/_]|$)|scores?([/_]|$)|(^|[/_])returns?([/_]|$)", names.RL_REWARD_STD),
        (r"acc(uracy)?([/_@]|$)|pass@|success|win_?rate|solved", names.RL_REWARD_STD),
        (r"loss(es)?([/_](mean|avg))?$", names.RL_TRAIN_LOSS),
        (r"(^|[/_])kl([/_]|$)|kl_?div", names.RL_POLICY_KL_REFERENCE),
        (r"entropy", names.RL_POLICY_ENTROPY),
        (r"advantages?([/_]|$)", names.RL_POLICY_ADVANTAGE_MEAN),
        (r"clip_?frac", names.RL_POLICY_CLIP_FRACTION),
        (r"grad(ient)?_?norm", names.RL_TRAIN_GRAD_NORM),
        (r"learning_rate|(^|[/_])lr([/_-]|$)", names.RL_TRAIN_LEARNING_RATE),
        (
            r"(response|completion|episode|rollout)(_|/)?(len|length|tokens)",
            names.RL_EPISODE_LENGTH,
        ),
        (r"staleness|off_?policy", names.RL_POLICY_STALENESS),
        (r"tokens|throughput|samples_per|per_second|(^|[/_])[ft]ps$", names.RL_TRAIN_TOKENS),
    )
)

_EVALUATION: Final = re.compile(r"(^|[/_])(eval|evaluation|val|valid|validation|test)([/_]|$)")


@lru_cache(maxsize=4096)
def resembled(name: str) -> str:
    """Return the name of a registered metric that an own name resembles; empty without one."""
    plain = name.lower().replace(".", "/")
    return next((known for pattern, known in _LIKE if pattern.search(plain)), "")


def headlines(keys: Iterable[KeySpec]) -> list[tuple[str, KeySpec]]:
    """Return keys that may stand for a run in a list, each with a word for it, the best first.

    Rewards before losses, those of the registry before those of own names, training before
    evaluation.
    """
    found = []
    for spec in keys:
        if spec.statistic != "value" or spec.worker:
            continue
        name = spec.name or spec.key
        is_own = name not in names.METRICS
        word = _WORDS.get(resembled(name) if is_own else name)
        if word is not None:
            is_evaluation = _EVALUATION.search(spec.key.lower()) is not None
            rank = word != "reward", is_own, is_evaluation, len(spec.key), spec.key
            found.append((rank, word, spec))
    return [(word, spec) for _, word, spec in sorted(found, key=lambda one: one[0])]


_WORDS: Final = {names.RL_REWARD_MEAN: "reward", names.RL_TRAIN_LOSS: "loss"}
