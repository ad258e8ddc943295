"""Peak rates of GPUs by the name that NVML gives them, the reference of the MFU."""

import re
from typing import Final

__all__ = ["peak_flops_per_s"]

_TERA: Final = 1e12

_PEAKS: Final[tuple[tuple[str, float], ...]] = (
    # All words of an entry occur in the device's name; of several entries the first one counts.
    ("GB200", 2500),
    ("B200", 2250),
    ("GH200", 989.4),
    ("H200 NVL", 835.5),
    ("H200", 989.4),
    ("H100 PCIe", 756.5),
    ("H100 NVL", 835.5),
    ("H100", 989.4),
    ("H800 PCIe", 756.5),
    ("H800", 989.4),
    ("H20", 148),
    ("A100", 312),
    ("A800", 312),
    ("A30", 165),
    ("A40", 149.7),
    ("A10", 125),
    ("A10G", 70),
    ("L4", 121),
    ("L40", 181),
    ("L40S", 362),
    ("RTX A6000", 154.8),
    ("RTX 6000 Ada", 364.2),
    ("V100 PCIE", 112),
    ("V100", 125),
    ("T4", 65),
)
"""Dense matrix multiplication in BF16 (V100 and T4: FP16) with accumulation in FP32, in 1e12
operations a second, from NVIDIA's data sheets, which give twice as much for sparse matrices."""

_WORDS: Final = re.compile(r"[^ \-_/]+")

_MAKERS: Final = frozenset({"NVIDIA", "TESLA"})

_SHARE: Final = re.compile(r"MIG|\d+[ABCQ]")
"""Words of the names of parts of a device: MIG instances, and virtual GPUs such as A40-8Q."""


def peak_flops_per_s(model: str) -> float | None:
    """Return the peak of a device with NVML's name ``model``; None if it is not known."""
    words = {word.upper() for word in _WORDS.findall(model)}
    if not words & _MAKERS or any(map(_SHARE.fullmatch, words)):
        return None
    for name, tera in _PEAKS:
        if words.issuperset(name.upper().split()):
            return tera * _TERA
    return None
