"""What a worker reports of its machine: GPUs (``hw.gpu.*``) and host (``system.*``).

Nothing here blocks training or raises into it. A machine without a GPU driver is normal.
"""
