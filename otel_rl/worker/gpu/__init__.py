"""Samples the worker's GPUs through NVML in a thread of its own, as ``hw.gpu.*``.

Off by default. It makes no CUDA context, never blocks training and never raises into it. A machine
without a driver is normal.
"""

from otel_rl.worker.gpu.model_flops import ModelFlops
from otel_rl.worker.gpu.sampler import GpuSampler

__all__ = ["GpuSampler", "ModelFlops"]
