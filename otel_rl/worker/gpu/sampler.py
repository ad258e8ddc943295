"""Sampler thread that queries the devices and records the readings.

    NVML --thread, every interval--> gauge.set(value)              with the time of the sample
                    latest answers --exporter--> observable sums

A thread of its own, because a faulty driver can block a query for minutes, while exports continue.
The process can be forked, and the sampler started and stopped, any number of times.
"""

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic_ns
from typing import Final

from opentelemetry.metrics import Meter

from otel_rl.worker.gpu.device_rounds import DeviceRounds
from otel_rl.worker.gpu.phase_owner import PhaseOwnership
from otel_rl.worker.gpu.readings import NoDriver
from otel_rl.worker.gpu.recorder import Recorder
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import GpuSettings

__all__ = ["GpuSampler"]

RETRY_S: Final = 30.0
"""Period of attempts to find a lost device, or a driver that was reset."""

STOP_TIMEOUT_S: Final = 1.0
"""Maximum time that the end of a process waits for a driver that does not answer."""


class GpuSampler:
    """Thread that samples the GPUs of this process. Never raises; thread-safe.

    Args:
        meter: Records the readings.
        guard: Catches errors.
        retry_s: See ``RETRY_S``.
    """

    def __init__(self, meter: Meter, guard: Guard, *, retry_s: float = RETRY_S) -> None:
        self._ownership = PhaseOwnership(monotonic_ns)
        self._recorder = Recorder(meter, self._held_without_devices_s)
        self._rounds = DeviceRounds(self._ownership, self._recorder, retry_s)
        self._guard = guard
        self._retry_s = retry_s
        # _lock guards the three below.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._settings = GpuSettings()

    def prepare(self, settings: GpuSettings) -> None:
        """Load NVML if sampling is enabled. Call it in the thread that starts the worker."""
        if settings.enabled:
            from otel_rl.worker.gpu.nvml import load  # few workers sample

            with self._guard, suppress(NoDriver):
                load()

    def start(self, settings: GpuSettings, role: str) -> None:
        """Sample from now on if workers of ``role`` sample, else stop. Idempotent."""
        with self._guard, self._lock:
            is_wanted = settings.are_for(role)
            if is_wanted and self._thread is not None and settings == self._settings:
                return
            self._end()
            self._rounds.expect(devices=is_wanted)
            if not is_wanted:
                return
            self._settings, self._stopping = settings, threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(settings, self._stopping), name="otel-rl-gpu", daemon=True
            )
            self._thread.start()

    def begin_turn(self, turn: object, phase: str) -> None:
        """Assign the GPUs to a phase, see ``PhaseOwnership``."""
        self._ownership.begin(turn, phase)
        self._recorder.show_turns()

    def end_turn(self, turn: object) -> None:
        """End the turn."""
        self._ownership.end(turn)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop sampling. Waits at most ``timeout_s`` for a running query."""
        with self._guard, self._lock:
            self._end(timeout_s)

    def count_anew(self) -> None:
        """Reset the sums for another worker."""
        self._rounds.count_anew()
        self._recorder.begin_anew()

    def forget(self) -> None:
        """Reset after a fork: the thread and the driver connection belong to the parent."""
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._rounds.forget()
        if "pynvml" in sys.modules:
            from otel_rl.worker.gpu.nvml import renew_locks

            renew_locks()
        self._ownership.forget()
        self._recorder.forget()

    def _held_without_devices_s(self) -> Mapping[str, float]:
        return {} if self._rounds.has_devices else self._ownership.held_s()

    def _end(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        self._ownership.changed.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, settings: GpuSettings, stopping: threading.Event) -> None:
        while not stopping.is_set():
            wait_s = self._retry_s
            with self._guard:
                wait_s = 0 if self._rounds.sample(settings, stopping) else wait_s
            stopping.wait(wait_s)
