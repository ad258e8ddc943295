"""The sections of a dashboard, and the place of each metric in them: one table.

The first rule whose pattern matches the name of a metric places it. Metrics of the registry without
a rule go by their group, a program's own names to the place of the metric that they resemble, and
all others to the last section.
"""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from otel_rl.dashboard.resemblance import resembled
from otel_rl.semconv import names

LEARNING: Final = "Learning"
THROUGHPUT: Final = "Throughput"
STEP_TIME: Final = "Step time"
ASYNC: Final = "Async"
WORKERS: Final = "Workers"
DIAGNOSIS: Final = "Diagnosis"
SYSTEM: Final = "System"
OWN: Final = "Your metrics"

SECTIONS: Final = (LEARNING, THROUGHPUT, STEP_TIME, ASYNC, WORKERS, DIAGNOSIS, SYSTEM, OWN)
"""Titles, in order."""


class Join(StrEnum):
    """Keys of one metric that share a panel.

    Attributes:
        SERIES: The statistics of one series.
        ROLE: All series of one role.
        METRIC: All series of all roles.
    """

    SERIES = "series"
    ROLE = "role"
    METRIC = "metric"


@dataclass(frozen=True, slots=True)
class Rule:
    """Place of metrics.

    Attributes:
        pattern: Of their names, with ``*``.
        section: Its title.
        join: Which keys share a panel.
        is_stacked: Whether the values of a panel add up to something, so that areas show it.
        title: Of the panels, before the role; empty for the words of the name.
    """

    pattern: str
    section: str
    join: Join = Join.SERIES
    is_stacked: bool = False
    title: str = ""


_RULES: Final = (
    Rule("rl.reward.duration", THROUGHPUT),
    Rule("rl.reward.mean", LEARNING),
    Rule("rl.reward.*", LEARNING),
    Rule("rl.sample.reward*", LEARNING),
    Rule("rl.sample.outcomes", LEARNING, Join.ROLE, title="Samples by outcome"),
    Rule("rl.sample.poisoned", LEARNING),
    Rule("rl.group.*", LEARNING),
    Rule("rl.train.loss", LEARNING),
    Rule("rl.policy.staleness", ASYNC),
    Rule("rl.policy.version", ASYNC, Join.METRIC),
    Rule("rl.policy.updates", THROUGHPUT),
    Rule("rl.policy.kl.*", LEARNING),
    Rule("rl.policy.entropy", LEARNING),
    Rule("rl.policy.*", LEARNING),
    Rule("rl.train.tokens", THROUGHPUT),
    Rule("rl.train.steps", THROUGHPUT),
    Rule("rl.train.mfu", THROUGHPUT),
    Rule("rl.goodput.ratio", THROUGHPUT, Join.METRIC, title="Goodput, productive share"),
    Rule(
        "rl.goodput.time",
        THROUGHPUT,
        Join.ROLE,
        is_stacked=True,
        title="Goodput, time of the workers",
    ),
    Rule("rl.train.*", LEARNING),
    Rule("rl.episode.length", LEARNING),
    Rule("rl.generator.response.tokens", LEARNING),
    Rule("rl.env.step.duration", THROUGHPUT),
    Rule("rl.iteration.duration", STEP_TIME),
    Rule("rl.phase.duration", STEP_TIME, Join.ROLE, is_stacked=True, title="Time by phase"),
    Rule(
        "rl.critical_path.duration",
        STEP_TIME,
        Join.METRIC,
        is_stacked=True,
        title="Critical path of a step",
    ),
    Rule("rl.health.bound", STEP_TIME, Join.METRIC, is_stacked=True, title="Bound by"),
    Rule("rl.health.*", STEP_TIME),
    Rule("rl.sample.age.*", ASYNC, Join.ROLE),
    Rule("rl.sample.dropped", ASYNC, Join.ROLE),
    Rule("rl.replay_buffer.*", ASYNC),
    Rule("rl.generator.queue.*", ASYNC),
    Rule("rl.generator.requests.running", ASYNC),
    Rule("rl.generator.kv_cache.*", ASYNC),
    Rule("rl.generator.preemptions", ASYNC),
    Rule("rl.service.alive", WORKERS, Join.METRIC, title="Workers alive"),
    Rule("rl.service.failures", WORKERS, Join.METRIC, title="Workers failed"),
    Rule("rl.service.recovery", WORKERS, Join.METRIC, title="Last recovery"),
    Rule("rl.service.*", WORKERS, Join.METRIC),
    Rule("rl.replica.*", WORKERS, Join.ROLE),
    Rule("gen_ai.*", THROUGHPUT),
)

_OF_GROUP: Final = {
    "trainer": LEARNING,
    "policy": LEARNING,
    "reward": LEARNING,
    "environment": LEARNING,
    "generator": THROUGHPUT,
    "wait": STEP_TIME,
    "replay_buffer": ASYNC,
    "service": WORKERS,
    "otel_rl": DIAGNOSIS,
    "machine": SYSTEM,
}


@lru_cache(maxsize=4096)
def rule_of(name: str) -> tuple[int, Rule]:
    """Return the place of a metric among all, for sorting, and its rule."""
    for place, rule in enumerate(_RULES):
        if fnmatchcase(name, rule.pattern):
            return place, rule
    metric = names.METRICS.get(name)
    if metric is None and (like := resembled(name)):
        place, rule = rule_of(like)
        return place, Rule(name, rule.section)
    section = OWN if metric is None else _OF_GROUP.get(metric.group, OWN)
    return len(_RULES), Rule(name, section)
