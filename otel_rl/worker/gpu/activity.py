"""Activity of a GPU's units, by the performance counters of Hopper and later GPUs (NVML's GPM).

A device is "utilized" as long as any kernel runs, however small. These counters tell what the chip
does. They are read in pairs, and are the means of the time between.
"""

from collections.abc import Iterator
from math import isnan
from time import monotonic
from types import ModuleType
from typing import Any, Final

from otel_rl.semconv.names import (
    HW_GPU_IO,
    RL_GPU_ACTIVITY,
    RL_GPU_LINK,
    RL_GPU_UNIT,
    RlGpuLinkValues,
    RlGpuUnitValues,
)
from otel_rl.worker.gpu.readings import Reading

__all__ = ["UnitCounters"]

_MIB: Final = 1 << 20

_UNITS: Final = (
    (RlGpuUnitValues.SM, "NVML_GPM_METRIC_SM_UTIL"),
    (RlGpuUnitValues.WARPS, "NVML_GPM_METRIC_SM_OCCUPANCY"),
    (RlGpuUnitValues.TENSOR, "NVML_GPM_METRIC_ANY_TENSOR_UTIL"),
    (RlGpuUnitValues.MEMORY, "NVML_GPM_METRIC_DRAM_BW_UTIL"),
)
"""In percent."""

_LINKS: Final = (
    ("receive", "NVML_GPM_METRIC_PCIE_RX_PER_SEC"),
    ("transmit", "NVML_GPM_METRIC_PCIE_TX_PER_SEC"),
)
"""In MiB a second."""


class UnitCounters:
    """Performance counters of one GPU. One thread.

    Args:
        nvml: The loaded ``pynvml``.
        handle: NVML's, of the GPU.

    Raises:
        NVMLError: The GPU or its driver has no such counters.
    """

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[object] = []
        self._read_at_s = 0.0
        self._moved = dict.fromkeys((direction for direction, _ in _LINKS), 0.0)
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        for _ in range(2):
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        self._sample()

    def read(self) -> Iterator[Reading]:
        """Yield the activity since the last call, and the bytes moved since the first one.

        Raises:
            NVMLError: The GPU does not answer.
        """
        begun_s = self._read_at_s
        self._sample()
        lasted_s = self._read_at_s - begun_s
        for (unit, _), percent in zip(_UNITS, self._means(_UNITS), strict=True):
            if percent is not None:
                yield Reading(RL_GPU_ACTIVITY, percent / 100, ((RL_GPU_UNIT, unit),))
        for (direction, _), mib_per_s in zip(_LINKS, self._means(_LINKS), strict=True):
            if mib_per_s is not None:
                self._moved[direction] += mib_per_s * lasted_s * _MIB
                yield Reading(
                    HW_GPU_IO,
                    round(self._moved[direction]),
                    (("network.io.direction", direction), (RL_GPU_LINK, RlGpuLinkValues.PCIE)),
                    since=0,
                )

    def close(self) -> None:
        """Free the samples."""
        samples, self._samples = self._samples, []
        for sample in samples:
            self._nvml.nvmlGpmSampleFree(sample)

    def _sample(self) -> None:
        self._samples.reverse()
        self._nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
        self._read_at_s = monotonic()

    def _means(self, metrics: tuple[tuple[str, str], ...]) -> list[float | None]:
        """Return the mean of each metric between both samples; None where there is none."""
        asked: Any = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = self._samples
        asked.numMetrics = len(metrics)
        for place, (_, name) in enumerate(metrics):
            asked.metrics[place].metricId = getattr(self._nvml, name)
        self._nvml.nvmlGpmMetricsGet(asked)
        answers = [asked.metrics[place] for place in range(len(metrics))]
        return [
            None if answer.nvmlReturn or isnan(answer.value) else answer.value for answer in answers
        ]
