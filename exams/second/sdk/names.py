"""Vocabularies: a program's names of phases, as timings and as spans, and of values."""

from typing import Final

WAITS: Final = frozenset(
    {"collector_wait", "rank_barrier", "reward_wait", "llm_wait", "idle", "buffer_wait"}
)

_SPANS_RL: Final = {
    "step": "rl.loop",
    "train": "rl.train",
    "generate": "rl.sample",
    "reward": "rl.reward",
    "weight_sync": "rl.sync",
}
_PHASES: Final = {
    "verl": {
        "step": "step",
        "load": "load_data",
        "generate": "gen",
        "reward": "reward",
        "reward_wait": "reward",
        "reference": "ref",
        "rank_barrier": "barrier",
        "train": "update_actor",
        "param_sync": "reduce_grads",
        "weight_sync": "update_weights",
        "weight_push": "push_weights",
        "weight_pull": "pull_weights",
        "checkpoint": "save_checkpoint",
        "evaluation": "testing",
        "collector_wait": "wait_rollout",
    },
    "slime": {
        "step": "step",
        "load": "data_preprocess",
        "generate": "rollout",
        "reward": "rm",
        "reward_wait": "rm",
        "reference": "ref_log_probs",
        "rank_barrier": "sync_barrier",
        "train": "actor_train",
        "param_sync": "grad_allreduce",
        "weight_sync": "update_weights",
        "weight_push": "update_weights",
        "weight_pull": "load_weights",
        "checkpoint": "save_model",
        "evaluation": "eval",
        "collector_wait": "train_wait",
    },
    "plain": {
        "step": "step",
        "load": "fetch_prompts",
        "generate": "generate",
        "reward": "score",
        "reward_wait": "wait_for_scores",
        "reference": "reference_logprobs",
        "rank_barrier": "wait_for_ranks",
        "train": "learn",
        "param_sync": "allreduce",
        "weight_sync": "publish_weights",
        "weight_push": "publish_weights",
        "weight_pull": "fetch_weights",
        "checkpoint": "checkpoint",
        "evaluation": "evaluate",
        "collector_wait": "wait_for_samples",
    },
}
_METRIC: Final = {"verl": "timing_s/{}", "slime": "perf/{}_time", "plain": "{}_seconds"}
_VALUES: Final = {
    "rl": {
        "loss": "rl.train.loss",
        "entropy": "rl.policy.entropy",
        "kl": "rl.policy.kl.reference",
        "reward": "rl.reward.mean",
        "reward_std": "rl.reward.std",
        "length": "rl.episode.length",
        "grad_norm": "rl.train.grad.norm",
        "lr": "rl.train.learning_rate",
        "version": "rl.policy.version",
        "tokens": "rl.train.tokens",
        "made_tokens": "rl.generator.tokens",
        "preemptions": "rl.generator.preemptions",
        "kv": "rl.generator.kv_cache.utilization",
        "evicted": "rl.replay_buffer.evictions",
        "written": "rl.replay_buffer.writes",
        "read": "rl.replay_buffer.reads",
        "held": "rl.replay_buffer.size",
        "request_s": "gen_ai.server.request.duration",
        "reward_s": "rl.reward.duration",
        "age": "rl.sample.age.versions",
        "samples": "rl.sample.samples",
        "gap": "rl.policy.logprob.mismatch",
        "gap_kl": "rl.policy.kl.rollout",
        "held_out": "eval/accuracy",
        "repeated": "rollout/repetition",
    },
    "verl": {
        "loss": "actor/pg_loss",
        "entropy": "actor/entropy",
        "kl": "actor/ppo_kl",
        "reward": "critic/rewards/mean",
        "reward_std": "critic/rewards/std",
        "length": "response_length/mean",
        "grad_norm": "actor/grad_norm",
        "lr": "actor/lr",
        "version": "rl.policy.version",
        "tokens": "perf/total_num_tokens",
        "made_tokens": "vllm:generation_tokens",
        "preemptions": "vllm:num_preemptions",
        "kv": "vllm:kv_cache_usage_perc",
        "evicted": "buffer/evicted",
        "written": "buffer/put",
        "read": "buffer/get",
        "held": "buffer/size",
        "request_s": "vllm:e2e_request_latency_seconds",
        "reward_s": "reward/latency",
        "age": "fully_async/staleness/mean",
        "samples": "rollout/samples",
        "gap": "training/rollout_probs_diff_mean",
        "gap_kl": "rollout_corr/kl",
        "held_out": "val-core/math/acc/mean@1",
        "repeated": "response/repetition_ratio",
    },
    "slime": {
        "loss": "train/loss",
        "entropy": "train/entropy",
        "kl": "train/kl",
        "reward": "rollout/raw_reward",
        "reward_std": "rollout/reward_std",
        "length": "rollout/response_len/mean",
        "grad_norm": "train/grad_norm",
        "lr": "train/lr",
        "version": "rl.policy.version",
        "tokens": "train/tokens",
        "made_tokens": "vllm:generation_tokens",
        "preemptions": "vllm:num_preemptions",
        "kv": "vllm:kv_cache_usage_perc",
        "evicted": "rl.replay_buffer.evictions",
        "written": "rl.replay_buffer.writes",
        "read": "rl.replay_buffer.reads",
        "held": "rl.replay_buffer.size",
        "request_s": "vllm:e2e_request_latency_seconds",
        "reward_s": "rm/latency_seconds",
        "age": "rollout/staleness",
        "samples": "rollout/samples",
        "gap": "train/train_rollout_logprob_abs_diff",
        "gap_kl": "train/train_rollout_kl",
        "held_out": "eval/aime",
        "repeated": "rollout/repetition_frac",
    },
    "plain": {
        "loss": "loss",
        "entropy": "policy_entropy",
        "kl": "approx_kl",
        "reward": "mean_reward",
        "reward_std": "reward_std",
        "length": "completion_length",
        "grad_norm": "grad_norm",
        "lr": "learning_rate",
        "version": "policy_version",
        "tokens": "trained_tokens",
        "made_tokens": "generated_tokens",
        "preemptions": "preempted_requests",
        "kv": "kv_cache_usage",
        "evicted": "evicted_samples",
        "written": "stored_samples",
        "read": "used_samples",
        "held": "stored_now",
        "request_s": "request_latency_seconds",
        "reward_s": "score_latency_seconds",
        "age": "sample_age_versions",
        "samples": "finished_samples",
        "gap": "sampling/sampling_logp_difference/mean",
        "gap_kl": "mismatch_kl",
        "held_out": "eval_score",
        "repeated": "repeated_ngrams",
    },
}


def phase_metric(names: str, phase: str) -> str:
    """Return the gauge of a phase's seconds; of the conventions one for all phases."""
    if names == "rl":
        return "rl.iteration.duration" if phase == "step" else "rl.phase.duration"
    own = _PHASES[names].get(phase, phase)
    return _METRIC[names].format(own)


def span_name(names: str, phase: str) -> str:
    if names == "rl":
        return _SPANS_RL.get(phase, f"rl.{phase}")
    own = _PHASES[names].get(phase, phase)
    return "training_step" if own == "step" else own


def value_name(names: str, value: str) -> str:
    """Return the program's name of a value; others are the same in all programs."""
    return _VALUES[names].get(value, value)
