"""Public data of others, scored from a directory that you have downloaded; nothing of it is kept.

- ``stragglers``: traces of training jobs, https://github.com/ByteDance-Seed/StragglerAnalysis
  (Apache-2.0)
- ``hangs``: dumps of PyTorch's flight recorder with injected faults,
  https://github.com/NVIDIA/nvidia-resiliency-ext (Apache-2.0)
- ``learning``: curves of GRPO and RLOO runs, https://github.com/Aarav500/flight-recorder
  (Apache-2.0)
"""
