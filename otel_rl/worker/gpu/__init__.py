"""Samples the worker's GPUs through NVML in a thread of its own, as ``hw.gpu.*``.

Off by default. It makes no CUDA context, never blocks training and never raises into it. A machine
without a driver is normal.
"""

from otel_rl.worker.gpu.model_flops import (
    MfuOptions,
    MfuSettings,
    ModelFlops,
    read_mfu_settings,
)
from otel_rl.worker.gpu.sampler import GpuSampler
from otel_rl.worker.gpu.settings import GpuOptions, GpuSettings, read_gpu_settings

__all__ = [
    "GpuOptions",
    "GpuSampler",
    "GpuSettings",
    "MfuOptions",
    "MfuSettings",
    "ModelFlops",
    "read_gpu_settings",
    "read_mfu_settings",
]
