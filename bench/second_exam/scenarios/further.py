"""What the other scenarios do not have: hosts, rare calls, numbers of steps that jump, resizes."""

from bench.second_exam.scenario import ONE, Scenario, fault, healthy
from bench.second_exam.trouble import Shape, What

__all__ = ["SCENARIOS"]

SCENARIOS: tuple[Scenario, ...] = (
    fault("lockstep.nic_of_one_host_slow", What.NIC, "trainer", "slow_sync straggler slow_link",
          index=ONE, needs="waits many", names_worker=False),
    fault("lockstep.last_stage_is_long", What.STAGES, "trainer", "stage_imbalance", phase="train",
          size=1.6, begins=0, needs="waits metrics many"),
    fault("lockstep.slow_rank_while_steps_jump", What.SLOW, "trainer", "straggler slow_training",
          phase="train", index=ONE, needs="waits jumps"),
    fault("lockstep.sync_slow_while_steps_jump", What.SLOW, "trainer", "slow_sync",
          phase="weight_sync", needs="jumps"),
    fault("lockstep.saves_slower_and_slower", What.SLOW, "trainer", "slow_phase",
          phase="checkpoint", size=12, begins=0.3, shape=Shape.RAMP, needs="saves"),
    fault("lockstep.save_hangs", What.HANG, "trainer", "stall", phase="checkpoint", index=ONE,
          needs="saves ours"),
    fault("lockstep.evaluation_slow", What.SLOW, "trainer", "slow_phase", phase="evaluation",
          size=9, needs="evaluates"),
    fault("async.one_generator_slower_and_slower", What.SLOW, "generator",
          "slow_generation straggler", phase="generate", index=ONE, size=4, begins=0.3,
          shape=Shape.RAMP),
    fault("async.push_hangs", What.HANG, "trainer", "stall", phase="weight_push", index=0,
          needs="ours"),
    fault("async.scorer_raises", What.RAISE, "reward", "crash", index=ONE, needs="ours"),
    fault("agents.tool_fails_now_and_then", What.FLAKY, "env", "slow_tool", phase="tool_search",
          size=30),
    fault("agents.all_tools_slow", What.SLOW, "env", "slow_tool", size=4),
    fault("agents.trainer_killed", What.KILL, "trainer", "crash", index=ONE, needs="ours"),
    healthy("lockstep.steps_jump", needs="jumps metrics"),
    healthy("async.steps_jump", needs="jumps"),
    healthy("lockstep.curriculum", What.CURRICULUM, "trainer", 1.35, needs="metrics"),
    healthy("async.curriculum", What.CURRICULUM, "generator", 1.35, needs="metrics"),
    healthy("lockstep.more_accumulation", What.MICRO, "trainer", needs="metrics waits"),
    healthy("lockstep.evaluation_moves_away", What.ELSEWHERE, "trainer", needs="evaluates ours"),
    healthy("lockstep.resumed_with_fewer_ranks", What.SMALLER, "trainer", 0.5, needs="ours many"),
    healthy("lockstep.loss_is_nan_and_heals", What.BLIP, "trainer", needs="metrics",
            may_say="nan"),
    healthy("lockstep.one_odd_evaluation", What.ODD_EVAL, "trainer", 6.7, needs="evaluates"),
    healthy("async.scorers_scale", What.SCALES, "reward", needs="ours many"),
    healthy("agents.steps_jump", needs="jumps"),
)  # fmt: skip
