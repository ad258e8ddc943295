"""Runs with nothing wrong, some with a change on purpose."""

from exams.second.scenario import ONE, Scenario, healthy
from exams.second.trouble import What

_LR = "kl_growth"  # a new learning rate may well move the policy further

SCENARIOS: tuple[Scenario, ...] = (
    healthy("lockstep.plain"),
    healthy("lockstep.plain_metrics", needs="metrics"),
    healthy("lockstep.plain_ours", needs="ours"),
    healthy("lockstep.batch_doubled", What.BATCH, "trainer", 2.0, needs="metrics"),
    healthy("lockstep.context_longer", What.LENGTH, "trainer", 1.8, needs="metrics"),
    healthy("lockstep.answers_grow", What.LENGTH_RAMP, "trainer", 2.5, needs="metrics"),
    healthy("lockstep.learning_rate_halved", What.LR, "trainer", 0.5, needs="metrics",
            may_say=_LR),
    healthy("lockstep.restarted", What.RESTART, "trainer", needs="ours"),
    healthy("lockstep.idle_tail", What.TAIL, "trainer"),
    healthy("lockstep.busy_neighbour", What.STEAL, "trainer", 1.0, index=ONE, needs="ours"),
    healthy("lockstep.rewards_in_seasons", What.SEASON, "trainer", needs="metrics"),
    healthy("lockstep.policy_leaps", What.LEAP, "trainer", needs="metrics"),
    healthy("lockstep.logprobs_drift", What.GAP_GROWS, "trainer", 2.5, needs="metrics"),
    healthy("lockstep.evaluation_grows", What.LONG_EVAL, "trainer", 3.0),
    healthy("async.plain"),
    healthy("async.plain_spans", needs="spans"),
    healthy("async.plain_ours", needs="ours"),
    healthy("async.plain_surplus", needs="surplus"),
    healthy("async.plain_surplus_in_short_steps", needs="surplus short ours"),
    healthy("async.batch_doubled", What.BATCH, "trainer", 2.0, needs="metrics"),
    healthy("async.context_longer", What.LENGTH, "generator", 1.8, needs="metrics"),
    healthy("async.answers_grow", What.LENGTH_RAMP, "generator", 2.0, needs="metrics"),
    healthy("async.generator_joins", What.JOIN, "generator", index=ONE),
    healthy("async.generator_leaves", What.LEAVE, "generator", index=ONE, needs="ours many"),
    healthy("async.generator_replaced", What.REPLACED, "generator", index=ONE, needs="ours",
            may_say="crash"),
    healthy("async.idle_tail", What.TAIL, "trainer"),
    healthy("async.rewards_in_seasons", What.SEASON, "trainer", needs="metrics"),
    healthy("async.policy_leaps", What.LEAP, "trainer", needs="metrics"),
    healthy("async.logprobs_drift", What.GAP_GROWS, "trainer", 2.5, needs="metrics"),
    healthy("agents.plain"),
    healthy("agents.plain_metrics", needs="metrics"),
    healthy("agents.context_longer", What.LENGTH, "generator", 1.8, needs="metrics"),
    healthy("agents.batch_doubled", What.BATCH, "trainer", 2.0, needs="metrics"),
    healthy("agents.answers_grow", What.LENGTH_RAMP, "generator", 2.0, needs="metrics"),
    healthy("agents.idle_tail", What.TAIL, "trainer"),
    healthy("agents.rewards_in_seasons", What.SEASON, "trainer", needs="metrics"),
    healthy("agents.policy_leaps", What.LEAP, "trainer", needs="metrics"),
    healthy("agents.logprobs_drift", What.GAP_GROWS, "trainer", 2.5, needs="metrics"),
)  # fmt: skip
