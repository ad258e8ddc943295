"""Reports of a worker about its machine: GPUs (``hw.gpu.*``) and host (``system.*``).

Nothing here blocks training or raises into it. A machine without a GPU driver is normal.
"""
