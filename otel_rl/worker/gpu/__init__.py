"""What the worker's GPUs do, asked of NVML by a thread of its own and recorded as ``hw.gpu.*``.

Off unless asked for. Nothing here makes a CUDA context, waits in training's way or raises into it.
A machine without a driver is a normal one.
"""

from otel_rl.worker.gpu.sampler import GpuSampler
from otel_rl.worker.gpu.settings import GpuOptions, GpuSettings, read_gpu_settings

__all__ = ["GpuOptions", "GpuSampler", "GpuSettings", "read_gpu_settings"]
