"""What goes wrong in a system of agents with tools."""

from exams.second.scenario import ONE, Scenario, both, fault
from exams.second.trouble import Shape, What

_TOOL = fault("agents.tool_slow", What.SLOW, "env", "slow_tool", phase="tool_search", size=4)
_TRAIN = fault("agents.one_rank_trains_slowly", What.SLOW, "trainer", "straggler slow_training",
               phase="train", index=ONE, begins=0.65, needs="waits")  # fmt: skip

SCENARIOS: tuple[Scenario, ...] = (
    _TOOL,
    fault("agents.tool_slow_for_a_while", What.SLOW, "env", "slow_tool", phase="tool_search",
          size=4, begins=0.35, shape=Shape.PASSING),
    fault("agents.tools_of_one_host_slow", What.SLOW, "env", "slow_tool straggler",
          phase="tool_search", index=ONE, size=6, needs="many"),
    fault("agents.one_engine_slow", What.SLOW, "generator", "slow_generation straggler",
          phase="generate", index=ONE, size=3),
    fault("agents.all_engines_slow", What.SLOW, "generator", "slow_generation", phase="generate"),
    fault("agents.kv_thrash", What.THRASH, "generator", "kv_thrash", needs="metrics"),
    fault("agents.engine_hangs", What.HANG, "generator", "stall", phase="generate", index=ONE,
          begins=0.6),
    fault("agents.env_hangs", What.HANG, "env", "stall", phase="tool_python", index=ONE,
          begins=0.6),
    _TRAIN,
    fault("agents.all_train_slowly", What.SLOW, "trainer", "slow_training", phase="train"),
    fault("agents.sync_slow", What.SLOW, "trainer", "slow_sync", phase="weight_sync"),
    fault("agents.saves_slow", What.SLOW, "trainer", "slow_phase", phase="checkpoint", size=10,
          needs="saves"),
    fault("agents.clock_wrong", What.SKEW, "env", "clock_skew", index=ONE, size=30, begins=0.0,
          needs="spans"),
    fault("agents.engine_killed", What.KILL, "generator", "crash", index=ONE, needs="ours many"),
    fault("agents.env_dies_again_and_again", What.LOOP, "env", "crash_loop", index=ONE,
          begins=0.4, needs="ours"),
    fault("agents.engine_hot", What.HEAT, "generator", "throttled", index=ONE, size=3,
          needs="metrics"),
    fault("agents.reward_falls", What.REWARD_FALL, "trainer", "reward_drop", needs="metrics"),
    fault("agents.a_rank_gets_more_tokens", What.UNEVEN, "trainer", "uneven_work", index=ONE,
          needs="ours many"),
    fault("agents.logprobs_disagree", What.GAP, "trainer", "logprob_mismatch", needs="metrics"),
    fault("agents.reward_is_tricked", What.HACK, "trainer", "reward_hacking", needs="metrics"),
    both("agents.two_at_different_times", _TOOL, _TRAIN),
)  # fmt: skip
