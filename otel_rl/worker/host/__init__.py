"""Reports CPU, memory, network and disk of the host as ``system.*``, from one process. ADR 19.

On by default. It makes no thread, never blocks training and never raises into it.
"""

from otel_rl.worker.host.recorder import HostRecorder

__all__ = ["HostRecorder"]
