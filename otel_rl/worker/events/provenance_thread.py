"""Thread that reports what a process runs, once: git may take seconds."""

import threading
from typing import Final

from otel_rl.semconv.names import RL_WORKER_START
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.queue import EventQueue, text_chars
from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.guard import Guard

__all__ = ["ProvenanceThread"]

_EXIT_S: Final = 1.0
"""How long the end of a short process waits for what is found out of its code."""


class ProvenanceThread:
    """Finds out the provenance of one process, and adds it to the events.

    Args:
        events: Takes the event.
        guard: Counts losses.
    """

    def __init__(self, events: EventQueue, guard: Guard) -> None:
        self._events = events
        self._guard = guard
        # _lock guards the three below. Re-entrant, for signal handlers that shut down.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._is_settled = False  # the event was added, or it is too late for it

    def start(self, *, with_code: bool) -> None:
        """Start the thread, unless there was one or the process ends.

        Args:
            with_code: Whether to report the code and its changes, besides command and machine.
        """
        with self._lock:
            if self._has_ended or self._thread is not None:
                return
            thread = threading.Thread(
                target=self._report,
                kwargs={"with_code": with_code},
                name="otel-rl-provenance",
                daemon=True,
            )
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """Start no thread any more, and wait up to a second for the one that runs."""
        with self._lock:
            self._has_ended = True
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_EXIT_S)
        with self._lock:  # what is added behind the last export would be a loss of it
            is_late = thread.is_alive() and not self._is_settled
            self._is_settled = True
        if is_late:
            self._guard.drop(
                DropReason.SHUTDOWN,
                "The process ended before its commit and packages were read: the run lacks them.",
            )

    def forget(self) -> None:
        """Forget the parent's thread, in a forked child."""
        self._lock, self._thread = threading.RLock(), None  # another thread may have held it
        self._is_settled = False

    def _report(self, *, with_code: bool) -> None:
        with self._guard:
            with IMPORTS.work():
                from otel_rl.worker.events.provenance import provenance  # needed once

            found = provenance(with_code=with_code)
            with self._lock:
                if self._is_settled:
                    return
                self._is_settled = True
                is_added = self._events.add(RL_WORKER_START, found, text_chars=text_chars(found))
            if not is_added:
                self._guard.drop(DropReason.BUFFER_FULL, "Too many events in one interval.")
