"""Says what a cause is compared with, and what to look at next."""

from collections.abc import Mapping
from typing import Final

from otel_rl.diagnose.result import Cause, Kind

_OF_PEERS: Final = frozenset({Kind.STRAGGLER, Kind.THROTTLED, Kind.GC_PAUSES})

_NEXT: Final[Mapping[Kind, str]] = {
    Kind.SLOW_GENERATION: "lengths of completions, batch sizes and the cache of {who}",
    Kind.SLOW_REWARD: "what {who} calls: verifiers, sandboxes, other services",
    Kind.SLOW_TRAINING: "sequence lengths and batch sizes of {who}, and its GPUs' clocks",
    Kind.SLOW_SYNC: "the transfer of weights: its size, its network, and who waits for whom",
    Kind.SLOW_PHASE: "what {phase} of {who} waits for: disk, network, another service",
    Kind.SLOW_TOOL: "the service or sandbox that {phase} of {who} calls: load, limits, time-outs",
    Kind.SLOW_DATA: "the source that {phase} of {who} reads: storage, network, loader processes",
    Kind.STRAGGLER: "GPU clocks, temperature, and other programs on the machine of {who}",
    Kind.UNEVEN_WORK: "how samples are dealt to {who} and its peers: by their number or by tokens",
    Kind.STAGE_IMBALANCE: "layers by stage: fewer where {who} also has the embedding or the loss",
    Kind.STARVATION: "rates of those who make samples, and what they wait for",
    Kind.EVICTION: "the buffer's size and age limit against the rate of samples",
    Kind.STALE_POLICY: "when {who} loads weights, and whether its last load failed",
    Kind.WRONG_WEIGHTS: "how {who} loads weights: the answer of the load, names and shards of "
    "parameters, a copy that is made before the load",
    Kind.STALENESS_GROWTH: "samples made and used per step, and the length of the queue",
    Kind.CRASH: "the last console lines of {who}, and its host's kernel log for the OOM killer",
    Kind.CRASH_LOOP: "the first error of {who}; later ones may follow from it",
    Kind.KV_THRASH: "cache size, concurrent requests and lengths of {who}",
    Kind.GC_PAUSES: "objects that {who} keeps; gc.freeze() after start-up",
    Kind.NETWORK_DELAY: "the network between callers and {who}: retransmissions, proxies, DNS",
    Kind.SLOW_LINK: "errors and speed of links (ibstat, nvidia-smi nvlink), and NCCL_IB_HCA",
    Kind.HOST_PRESSURE: "other programs and virtual machines on that host, and its limits",
    Kind.MEMORY_GROWTH: "what {who} keeps from step to step: tensors with their graph, lists of "
    "samples, caches without a bound, what is left after an engine's sleep; a checkpoint and a "
    "restart before that step",
    Kind.THROTTLED: "temperature, fans and power limit of the devices of {who}",
    Kind.STALL: "the stack of {who}, and who else is in the same collective",
    Kind.CLOCK_SKEW: "time synchronisation (chrony, NTP) of the host of {who}",
    Kind.NAN: "inputs, gradient norm and loss scale of {who} in the steps before",
    Kind.REWARD_BUG: "the reward function's last change, and rollouts with the odd rewards",
    Kind.REWARD_DROP: "learning rate, data and rollouts since then",
    Kind.ENTROPY_COLLAPSE: "entropy bonus, temperature, and rollouts that repeat themselves",
    Kind.KL_GROWTH: "KL coefficient, learning rate, and the reference policy",
    Kind.LOGPROB_MISMATCH: "the last weight transfer, then precision, temperature and kernels: the "
    "same tokens through both programs of {who}",
    Kind.REWARD_HACKING: "rollouts with the highest rewards since then, and what the reward of "
    "{who} checks in them",
    Kind.POISONED_REWARDS: "the failed rollouts of {who}: mask them, or make them again, before "
    "advantages are computed",
    Kind.DEAD_GROUPS: "prompts of another difficulty, more samples for each, and whether "
    "the reward tells answers apart",
}


def next_look(cause: Cause) -> str:
    who = cause.worker or cause.role or "the workers"
    return _NEXT[cause.kind].format(who=who, phase=cause.phase or "the phase")


def compared_with(cause: Cause) -> str:
    if cause.kind is Kind.UNEVEN_WORK:
        return f"other workers of {cause.role} in the same steps"
    if cause.kind is Kind.STAGE_IMBALANCE:
        return "the other stages in the same steps"
    if cause.kind in _OF_PEERS and cause.worker is not None and cause.since is None:
        return f"other workers of {cause.role} in the same steps"
    if cause.kind in _OF_PEERS and cause.worker is not None:
        return f"its steps before {cause.since}, and other workers of {cause.role}"
    if cause.kind is Kind.CLOCK_SKEW:
        return "clocks of the other hosts and of the bridge"
    if cause.kind is Kind.STALL:
        return "the usual time of a step of this run"
    if cause.kind in {Kind.CRASH, Kind.CRASH_LOOP}:
        return "other workers, which go on"
    if cause.since is not None:
        return f"steps before {cause.since}"
    return "other work of the same steps"
