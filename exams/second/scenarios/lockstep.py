"""What goes wrong in a synchronous, colocated system."""

from exams.second.scenario import ONE, Scenario, both, fault
from exams.second.trouble import Shape, What

__all__ = ["SCENARIOS"]

_SLOW_RANK = "straggler slow_training"
_ONE = fault(
    "lockstep.one_rank_trains_slowly", What.SLOW, "trainer", _SLOW_RANK, phase="train", index=ONE,
    needs="waits",
)  # fmt: skip
_SCORES = fault(
    "lockstep.all_score_slowly", What.SLOW, "reward", "slow_reward", phase="reward", begins=0.6
)
_SYNC = fault("lockstep.sync_slow", What.SLOW, "trainer", "slow_sync", phase="weight_sync")
_NAN = fault("lockstep.nan", What.NAN, "trainer", "nan", index=ONE, begins=0.6, needs="ours")

SCENARIOS: tuple[Scenario, ...] = (
    _ONE,
    fault("lockstep.one_rank_every_third_step", What.SLOW, "trainer", _SLOW_RANK, phase="train",
          index=ONE, shape=Shape.THIRD, needs="waits quiet"),
    fault("lockstep.one_rank_now_and_then", What.SLOW, "trainer", _SLOW_RANK, phase="train",
          index=ONE, shape=Shape.SOME, needs="waits quiet"),
    fault("lockstep.one_rank_slower_and_slower", What.SLOW, "trainer", _SLOW_RANK, phase="train",
          index=ONE, begins=0.3, shape=Shape.RAMP, needs="waits"),
    fault("lockstep.one_rank_for_a_while", What.SLOW, "trainer", _SLOW_RANK, phase="train",
          index=ONE, begins=0.4, shape=Shape.PASSING, needs="waits"),
    fault("lockstep.one_rank_from_the_start", What.SLOW, "trainer", _SLOW_RANK, phase="train",
          index=ONE, begins=0.0, needs="waits many"),
    fault("lockstep.one_rank_a_little", What.SLOW, "trainer", _SLOW_RANK, phase="train",
          index=ONE, size=1.4, needs="waits quiet"),
    fault("lockstep.one_rank_generates_slowly", What.SLOW, "trainer", "straggler slow_generation",
          phase="generate", index=ONE, needs="waits"),
    fault("lockstep.all_generate_slowly", What.SLOW, "trainer", "slow_generation",
          phase="generate"),
    fault("lockstep.all_generate_slowly_for_a_while", What.SLOW, "trainer", "slow_generation",
          phase="generate", begins=0.4, shape=Shape.PASSING),
    fault("lockstep.long_tails", What.SLOW, "trainer", "slow_generation straggler",
          phase="generate", shape=Shape.SOME, needs="quiet"),
    _SCORES,
    fault("lockstep.one_scorer_slow", What.SLOW, "reward", "slow_reward straggler",
          phase="reward", index=ONE),
    fault("lockstep.all_train_slowly", What.SLOW, "trainer", "slow_training", phase="train"),
    fault("lockstep.reference_slow", What.SLOW, "trainer", "slow_phase slow_training",
          phase="reference"),
    _SYNC,
    fault("lockstep.saves_slow", What.SLOW, "trainer", "slow_phase", phase="checkpoint",
          size=10, needs="saves"),
    fault("lockstep.data_slow", What.SLOW, "trainer", "slow_data", phase="load", size=12),
    fault("lockstep.data_of_one_rank_stalls", What.SLOW, "trainer", "straggler slow_data",
          phase="load", size=25, index=ONE, shape=Shape.SOME, needs="waits quiet"),
    fault("lockstep.rank_hangs_in_training", What.HANG, "trainer", "stall", phase="train",
          index=ONE, begins=0.7, needs="waits"),
    fault("lockstep.rank_hangs_in_generation", What.HANG, "trainer", "stall", phase="generate",
          index=ONE, begins=0.7),
    fault("lockstep.rank_hangs_in_plain_sdk", What.HANG, "trainer", "stall", phase="train",
          index=ONE, begins=0.5),
    fault("lockstep.rank_killed", What.KILL, "trainer", "crash", index=ONE, begins=0.6,
          needs="ours"),
    fault("lockstep.rank_raises", What.RAISE, "trainer", "crash", index=ONE, begins=0.6,
          needs="ours"),
    fault("lockstep.scorer_dies_again_and_again", What.LOOP, "reward", "crash_loop", index=ONE,
          begins=0.4, needs="ours"),
    _NAN,
    fault("lockstep.reward_falls", What.REWARD_FALL, "trainer", "reward_drop", needs="metrics"),
    fault("lockstep.reward_constant", What.REWARD_CONSTANT, "trainer", "reward_bug",
          needs="metrics"),
    fault("lockstep.reward_jumps", What.REWARD_JUMP, "trainer", "reward_bug", needs="metrics"),
    fault("lockstep.entropy_collapses", What.ENTROPY, "trainer", "entropy_collapse",
          needs="metrics"),
    fault("lockstep.kl_grows", What.KL, "trainer", "kl_growth", needs="metrics"),
    fault("lockstep.host_shares_its_cpus", What.STEAL, "trainer", "host_pressure", index=ONE,
          needs="ours many", names_worker=False),
    fault("lockstep.link_slow", What.LINK, "trainer", "slow_link", needs="metrics"),
    fault("lockstep.a_rank_gets_more_tokens", What.UNEVEN, "trainer", "uneven_work", index=ONE,
          needs="ours many"),
    fault("lockstep.logprobs_disagree", What.GAP, "trainer", "logprob_mismatch", needs="metrics"),
    fault("lockstep.reward_is_tricked", What.HACK, "trainer", "reward_hacking", needs="metrics"),
    fault("lockstep.collector_pauses", What.GC, "trainer", "gc_pauses", index=ONE, needs="ours"),
    fault("lockstep.one_device_hot", What.HEAT, "trainer", "throttled", index=ONE,
          needs="metrics"),
    fault("lockstep.clock_wrong", What.SKEW, "trainer", "clock_skew", index=ONE, size=25,
          begins=0.0, needs="spans"),
    fault("lockstep.calls_late_on_the_wire", What.WIRE, "reward", "network_delay",
          needs="metrics"),
    both("lockstep.two_at_different_times",
         fault("lockstep.", What.SLOW, "trainer", _SLOW_RANK, phase="train", index=ONE,
               begins=0.3, needs="waits"),
         fault("lockstep.", What.SLOW, "reward", "slow_reward", phase="reward", begins=0.7)),
    both("lockstep.two_of_the_same_size", _ONE, _SYNC),
    both("lockstep.nan_and_a_slow_rank", _NAN, _ONE),
)  # fmt: skip
