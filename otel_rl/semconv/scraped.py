"""What Prometheus exporters call a metric, and what it is called here. Pure.

DCGM-exporter, node-exporter, vLLM, SGLang and Ray serve their metrics under names of their own. A
Collector scrapes them and hands them on as they are. A rule is here only if the exporter means the
same as the registry; what has no rule keeps its own name. How values of several targets become one
is said by the registry and never guessed, so that no ratio is ever added up.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from otel_rl.semconv import names

__all__ = ["Scraped", "meaning"]

_MAX_KNOWN: Final = 10_000
"""Bounds the cache against names that carry an id."""

_MIB: Final = float(1 << 20)
_MHZ: Final = 1e6
_PER_CENT: Final = 0.01
_MILLI: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Scraped:
    """What a metric of an exporter is.

    Attributes:
        name: In the registry, or a name of its own about a GPU.
        scale: Factor to the registry's unit.
        attributes: Of each point, besides its labels.
        labels: What a label is called here, with ``{}`` for its value if that is changed: label to
            (attribute, value). Labels that are not named stay as they are.
        dropped: Labels that say nothing that another one does not.
    """

    name: str
    scale: float = 1.0
    attributes: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()


@lru_cache(maxsize=_MAX_KNOWN)
def meaning(name: str) -> Scraped | None:
    """What the metric ``name`` of an exporter is; None if no rule says."""
    for prefix, rules in _ENGINES.items():
        if name.startswith(prefix):
            return _first(rules, name[len(prefix) :])
    if name.startswith("DCGM_FI_"):
        return _dcgm(name)
    if name.startswith("ray_node_"):
        return _first(_RAY, name)
    return _first(_NODE, name) if name.startswith("node_") else None


_Rules = Mapping[str, Scraped]
"""Regular expression of a whole name to what it is; the first that matches counts."""

_VLLM: Final[_Rules] = {
    r"(kv|gpu)_cache_usage_perc": Scraped(names.RL_GENERATOR_KV_CACHE_UTILIZATION),
    r"(gpu_)?prefix_cache_queries(_total)?": Scraped(names.RL_GENERATOR_KV_CACHE_QUERIES),
    r"(gpu_)?prefix_cache_hits(_total)?": Scraped(names.RL_GENERATOR_KV_CACHE_HITS),
    r"num_preemptions(_total)?": Scraped(names.RL_GENERATOR_PREEMPTIONS),
    r"num_requests_running": Scraped(names.RL_GENERATOR_REQUESTS_RUNNING),
    r"num_requests_waiting": Scraped(names.RL_GENERATOR_QUEUE_DEPTH),
    r"generation_tokens(_total)?": Scraped(names.RL_GENERATOR_TOKENS),
    r"request_success(_total)?": Scraped(names.RL_GENERATOR_REQUESTS),
    r"request_queue_time_seconds": Scraped(names.RL_GENERATOR_QUEUE_DURATION),
    r"request_generation_tokens": Scraped(names.RL_GENERATOR_RESPONSE_TOKENS),
    r"request_prompt_tokens": Scraped(names.RL_GENERATOR_PROMPT_TOKENS),
    r"time_to_first_token_seconds": Scraped(names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN),
    r"(inter_token_latency|time_per_output_token)_seconds": Scraped(
        names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN
    ),
    r"e2e_request_latency_seconds": Scraped(names.GEN_AI_SERVER_REQUEST_DURATION),
}

_SGLANG: Final[_Rules] = {
    r"token_usage": Scraped(names.RL_GENERATOR_KV_CACHE_UTILIZATION),
    r"max_total_num_tokens": Scraped(names.RL_GENERATOR_KV_CACHE_LIMIT),
    r"num_used_tokens": Scraped(names.RL_GENERATOR_KV_CACHE_USAGE),
    r"cached_tokens_total": Scraped(names.RL_GENERATOR_KV_CACHE_HITS),
    r"generation_tokens_total": Scraped(names.RL_GENERATOR_TOKENS),
    r"num_running_reqs": Scraped(names.RL_GENERATOR_REQUESTS_RUNNING),
    r"num_queue_reqs": Scraped(names.RL_GENERATOR_QUEUE_DEPTH),
    r"num_retracted_requests_total": Scraped(names.RL_GENERATOR_PREEMPTIONS),
    r"num_requests_total": Scraped(names.RL_GENERATOR_REQUESTS),
    r"queue_time_seconds": Scraped(names.RL_GENERATOR_QUEUE_DURATION),
    r"time_to_first_token_seconds": Scraped(names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN),
    r"inter_token_latency_seconds": Scraped(names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN),
    r"e2e_request_latency_seconds": Scraped(names.GEN_AI_SERVER_REQUEST_DURATION),
}

_ENGINES: Final[Mapping[str, _Rules]] = {
    "vllm:": _VLLM,
    "ray_vllm_": _VLLM,  # served by Ray, which has no colons in names
    "sglang:": _SGLANG,
}

_GPU: Final = {"hw.type": "gpu"}


def _clock(domain: str) -> Scraped:
    return Scraped(names.RL_GPU_CLOCK_FREQUENCY, _MHZ, {names.RL_GPU_CLOCK_DOMAIN: domain})


def _ecc(kind: str) -> Scraped:
    return Scraped(names.HW_ERRORS, 1.0, {**_GPU, names.ERROR_TYPE: kind})


_DCGM: Final[_Rules] = {
    r"DEV_GPU_UTIL": Scraped(names.HW_GPU_UTILIZATION, _PER_CENT),
    r"DEV_FB_USED": Scraped(names.HW_GPU_MEMORY_USAGE, _MIB),
    r"DEV_FB_TOTAL": Scraped(names.HW_GPU_MEMORY_LIMIT, _MIB),
    r"DEV_FB_USED_PERCENT": Scraped(names.HW_GPU_MEMORY_UTILIZATION),
    r"DEV_POWER_USAGE": Scraped(names.HW_POWER, 1.0, _GPU),
    r"DEV_ENFORCED_POWER_LIMIT": Scraped(names.RL_GPU_POWER_LIMIT),
    r"DEV_TOTAL_ENERGY_CONSUMPTION": Scraped(names.HW_ENERGY, _MILLI, _GPU),
    r"DEV_GPU_TEMP": Scraped(names.HW_TEMPERATURE, 1.0, _GPU),
    r"DEV_SM_CLOCK": _clock(names.RlGpuClockDomainValues.SM),
    r"DEV_MEM_CLOCK": _clock(names.RlGpuClockDomainValues.MEMORY),
    r"DEV_ECC_SBE_VOL_TOTAL": _ecc("ecc.corrected"),
    r"DEV_ECC_DBE_VOL_TOTAL": _ecc("ecc.uncorrected"),
}

_DCGM_LABELS: Final = {
    "UUID": ("hw.id", "{}"),
    "gpu": ("hw.name", "gpu{}"),
    "modelName": ("hw.model", "{}"),
    "Hostname": ("host.name", "{}"),
}
_DCGM_DROPPED: Final = frozenset({"device", "pci_bus_id", "DCGM_FI_DRIVER_VERSION"})


def _dcgm(name: str) -> Scraped:
    """What is not in the registry is of the device as well: ``rl.gpu.dcgm.prof_sm_active``."""
    word = name.removeprefix("DCGM_FI_")
    found = _first(_DCGM, word) or Scraped(f"rl.gpu.dcgm.{word.lower()}")
    return Scraped(found.name, found.scale, found.attributes, _DCGM_LABELS, _DCGM_DROPPED)


# Ray numbers the devices of a node and has no ids of them, so they are in the values of all only.
_RAY_GPU: Final = {"GpuIndex": ("hw.name", "gpu{}"), "GpuDeviceName": ("hw.model", "{}")}

_STATE: Final = "system.memory.state"
_NETWORK: Final = "network.io.direction"
_DISK: Final = "disk.io.direction"

_RAY: Final[_Rules] = {
    r"ray_node_gpus_utilization": Scraped(names.HW_GPU_UTILIZATION, _PER_CENT, {}, _RAY_GPU),
    r"ray_node_gram_used": Scraped(names.HW_GPU_MEMORY_USAGE, _MIB, {}, _RAY_GPU),
    r"ray_node_cpu_utilization": Scraped(names.SYSTEM_CPU_UTILIZATION, _PER_CENT),
    r"ray_node_mem_used": Scraped(names.SYSTEM_MEMORY_USAGE, 1.0, {_STATE: "used"}),
}

_NODE: Final[_Rules] = {
    r"node_memory_MemFree_bytes": Scraped(names.SYSTEM_MEMORY_USAGE, 1.0, {_STATE: "free"}),
    r"node_memory_Cached_bytes": Scraped(names.SYSTEM_MEMORY_USAGE, 1.0, {_STATE: "cached"}),
    r"node_memory_Buffers_bytes": Scraped(names.SYSTEM_MEMORY_USAGE, 1.0, {_STATE: "buffers"}),
    r"node_network_receive_bytes_total": Scraped(
        names.SYSTEM_NETWORK_IO, 1.0, {_NETWORK: "receive"}
    ),
    r"node_network_transmit_bytes_total": Scraped(
        names.SYSTEM_NETWORK_IO, 1.0, {_NETWORK: "transmit"}
    ),
    r"node_disk_read_bytes_total": Scraped(names.SYSTEM_DISK_IO, 1.0, {_DISK: "read"}),
    r"node_disk_written_bytes_total": Scraped(names.SYSTEM_DISK_IO, 1.0, {_DISK: "write"}),
}


def _first(rules: _Rules, name: str) -> Scraped | None:
    return next((found for rule, found in rules.items() if re.fullmatch(rule, name)), None)
