"""Guard of the whole process, which every session shares."""

from typing import Final

from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard

__all__ = ["GUARD"]

GUARD: Final = Guard(Drops())
"""Counts the losses of the process, before and after ``init``."""
