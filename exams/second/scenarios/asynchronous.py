"""What goes wrong in an asynchronous system."""

from exams.second.scenario import ONE, Scenario, both, fault
from exams.second.trouble import Shape, What

_GENERATE = "slow_generation straggler"
_ALL = fault("async.all_generate_slowly", What.SLOW, "generator", "slow_generation",
             phase="generate")  # fmt: skip
_PUSH = fault("async.push_slow", What.SLOW, "trainer", "slow_sync", phase="weight_push",
              begins=0.65)  # fmt: skip
_SCORE = fault("async.all_score_slowly", What.SLOW, "reward", "slow_reward", phase="reward")
_THRASH = fault("async.kv_thrash", What.THRASH, "generator", "kv_thrash", needs="metrics")

SCENARIOS: tuple[Scenario, ...] = (
    _ALL,
    fault("async.all_generate_slowly_for_a_while", What.SLOW, "generator", "slow_generation",
          phase="generate", begins=0.35, shape=Shape.PASSING),
    fault("async.one_generates_slowly", What.SLOW, "generator", _GENERATE, phase="generate",
          index=ONE),
    fault("async.one_generates_slowly_now_and_then", What.SLOW, "generator", _GENERATE,
          phase="generate", index=ONE, shape=Shape.SOME, needs="quiet"),
    fault("async.one_generates_slowly_and_none_waits", What.SLOW, "generator", _GENERATE,
          phase="generate", size=3.0, index=ONE, needs="surplus"),
    fault("async.one_generates_slowly_in_short_steps", What.SLOW, "generator", _GENERATE,
          phase="generate", size=3.0, index=ONE, needs="surplus short ours"),
    fault("async.one_generates_slowly_in_short_steps_awhile", What.SLOW, "generator", _GENERATE,
          phase="generate", size=3.0, index=ONE, begins=0.3, shape=Shape.PASSING,
          needs="surplus short ours"),
    fault("async.one_generator_hangs_and_none_waits", What.HANG, "generator", "stall crash "
          "straggler slow_generation", phase="generate", index=ONE, needs="surplus ours"),
    fault("async.one_generator_hangs_in_short_steps", What.HANG, "generator", "stall crash "
          "straggler slow_generation", phase="generate", index=ONE, needs="surplus short ours"),
    fault("async.one_generator_hangs", What.HANG, "generator", "stall crash straggler "
          "slow_generation", phase="generate", index=ONE),
    fault("async.all_generators_hang", What.HANG, "generator", "stall", phase="generate",
          begins=0.7),
    fault("async.generator_killed", What.KILL, "generator", "crash", index=ONE, needs="ours"),
    fault("async.trainer_killed", What.KILL, "trainer", "crash", index=ONE, begins=0.6,
          needs="ours"),
    fault("async.generator_dies_again_and_again", What.LOOP, "generator", "crash_loop",
          index=ONE, begins=0.4, needs="ours"),
    _SCORE,
    fault("async.one_scores_slowly", What.SLOW, "reward", "slow_reward straggler",
          phase="reward", index=ONE),
    fault("async.one_generator_keeps_old_weights", What.DEAF, "generator", "stale_policy",
          index=ONE, needs="metrics"),
    fault("async.all_keep_old_weights", What.DEAF, "generator", "stale_policy", needs="metrics"),
    _PUSH,
    fault("async.one_pulls_slowly", What.SLOW, "generator", "slow_sync straggler",
          phase="weight_pull", size=8, index=ONE),
    fault("async.samples_evicted", What.CRAMPED, "replay_buffer", "eviction", size=0.25,
          needs="metrics"),
    fault("async.prompts_late", What.DRY, "generator", "starvation"),
    _THRASH,
    fault("async.one_rank_trains_slowly", What.SLOW, "trainer", "straggler slow_training",
          phase="train", index=ONE, needs="waits"),
    fault("async.one_rank_every_third_step", What.SLOW, "trainer", "straggler slow_training",
          phase="train", index=ONE, shape=Shape.THIRD, needs="waits quiet"),
    fault("async.all_train_slowly", What.SLOW, "trainer", "slow_training", phase="train"),
    fault("async.calls_late_on_the_wire", What.WIRE, "reward", "network_delay", needs="metrics"),
    fault("async.one_device_hot", What.HEAT, "generator", "throttled", index=ONE,
          needs="metrics"),
    fault("async.collector_pauses", What.GC, "generator", "gc_pauses", index=ONE, needs="ours"),
    fault("async.trainer_hangs", What.HANG, "trainer", "stall", phase="train", index=ONE,
          begins=0.6, needs="waits"),
    fault("async.scorers_hang", What.HANG, "reward", "stall", phase="reward", begins=0.6),
    fault("async.kl_grows", What.KL, "trainer", "kl_growth", needs="metrics"),
    fault("async.host_shares_its_cpus", What.STEAL, "trainer", "host_pressure", index=ONE,
          needs="ours many", names_worker=False),
    fault("async.a_rank_gets_more_tokens", What.UNEVEN, "trainer", "uneven_work", index=ONE,
          needs="ours many"),
    fault("async.logprobs_disagree", What.GAP, "trainer", "logprob_mismatch", needs="metrics"),
    fault("async.reward_is_tricked", What.HACK, "trainer", "reward_hacking", needs="metrics"),
    fault("async.entropy_collapses", What.ENTROPY, "trainer", "entropy_collapse",
          needs="metrics"),
    fault("async.samples_age", What.AGEING, "replay_buffer", "staleness_growth",
          needs="metrics"),
    fault("async.clock_wrong", What.SKEW, "generator", "clock_skew", index=ONE, size=-40,
          begins=0.0, needs="spans"),
    both("async.two_at_different_times",
         fault("async.", What.SLOW, "generator", "slow_generation", phase="generate",
               begins=0.3), _PUSH),
    both("async.two_at_once", _THRASH, _SCORE),
)  # fmt: skip
