"""Rollouts that are open in this process, and the events about them in an export.

Each export sends one event for each open rollout whose stage has changed since the last event, so a
rollout that ends before costs nothing but the event of its end. A rollout that does not change is
reported again after a while: an export may have been lost, or the worker may have been taken for
lost.
"""

import os
import threading
from contextvars import ContextVar
from time import time_ns
from typing import Final

from opentelemetry.trace import Span

from otel_rl.worker.otlp.anyvalue import Plain

MAX_OPEN: Final = 4_096
"""Open rollouts of a process that are shown while they run; further ones are told at their end."""

_MAX_TOLD: Final = 512
"""Events of one export, about 150 KB. The next export tells the rest."""


AGAIN_NS: Final = 30 * 1_000_000_000
"""After so long a rollout is told again."""


class OpenRollout:
    """An open rollout. Any thread may move it on.

    Attributes:
        fields: Id and attempt of the rollout, and other fields known from its begin.
        step: Training step; None without one.
        begun_ns: Begin of the rollout, in ns since the Unix epoch.
        stage: Innermost open phase, or stage that the program named; empty between two.
        progress_ns: Time of the last change of the stage.
        span: The first span in the rollout, which leads to its trace; None before one.
        due_ns: Time of the monotonic clock from which on an event is due; 0 for at once.
    """

    __slots__ = ("begun_ns", "due_ns", "fields", "progress_ns", "span", "stage", "step")

    def __init__(self, fields: dict[str, Plain], step: int | None, stage: str) -> None:
        self.fields = fields
        self.step = step
        self.begun_ns = self.progress_ns = time_ns()
        self.stage = stage
        self.span: Span | None = None
        self.due_ns = 0

    def moved(self, stage: str, span: Span | None = None) -> None:
        """Record that a stage has begun, in the given span."""
        self.stage = stage
        self.progress_ns = time_ns()
        self.due_ns = 0
        if self.span is None:
            self.span = span

    def body(self) -> dict[str, object]:
        return {
            **self.fields,
            "stage": self.stage,
            "begun_ns": self.begun_ns,
            "progress_ns": self.progress_ns,
        }


CURRENT: Final[ContextVar[OpenRollout | None]] = ContextVar("otel_rl_rollout", default=None)
"""The rollout of the present thread or task."""


class OpenRollouts:
    """The open rollouts of a process. Thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset in a forked child: the parent ends and reports its open rollouts."""
        # _lock guards the one below.
        self._lock = threading.Lock()
        self._open: dict[int, OpenRollout] = {}  # the one that was told longest ago is first

    def add(self, one: OpenRollout) -> bool:
        """Add a rollout. Returns False if there are too many."""
        with self._lock:
            if len(self._open) >= MAX_OPEN:
                return False
            self._open[id(one)] = one
            return True

    def remove(self, one: OpenRollout) -> None:
        """Remove a rollout that has ended; ignore rollouts that are not of this process."""
        with self._lock:
            self._open.pop(id(one), None)

    def due(self, now_ns: int) -> list[OpenRollout]:
        """Return some rollouts whose event is due, those with the oldest event first.

        Args:
            now_ns: Time of the monotonic clock.
        """
        with self._lock:
            found = [one for one in self._open.values() if one.due_ns <= now_ns]
        return found[:_MAX_TOLD]

    def told(self, one: OpenRollout, now_ns: int) -> None:
        """Note that a rollout's event is being made, so that other rollouts come before it.

        Call this before the rollout's fields are read, so that no progress is missed.
        """
        one.due_ns = now_ns + AGAIN_NS
        with self._lock:
            if self._open.pop(id(one), None) is not None:
                self._open[id(one)] = one


OPEN: Final = OpenRollouts()
"""Those of this process."""


os.register_at_fork(after_in_child=OPEN.forget)
